"""The configuration file: one pydantic model for each section.

Start at `config.py`; `section.py` says how an error names the setting and how to fix it.
Imports policy and credentials, for what settings may say.
"""
