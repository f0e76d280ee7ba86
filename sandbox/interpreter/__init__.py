"""A persistent Python interpreter in a sandbox, for execute_python.

Start at `interpreter.py`, which runs cells in a background process of the sandbox. `inside/` is what runs there, on its
standard library alone, and `frames.py` reads what it sends, none of which is trusted. `cell.py` has the values.
Imports sandbox layers below 4.
"""
