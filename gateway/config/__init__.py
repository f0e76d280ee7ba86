"""The configuration file: one pydantic model for each section.

Start at `config.py`; `section.py` words the errors, which name the setting and the fix. Imports gateway layers below
4, agent and sandbox.
"""
