"""The command line. Slow imports stay inside the commands, so that --help is fast.

Start at `main.py`, and at `command.py` for what each command is given. Imports gateway layers below 19, agent,
airlock and sandbox.
"""
