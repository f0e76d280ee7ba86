"""What runs in the sandbox: its text is sent there, so it uses the standard library alone, of Python 3.8 and later.

Start at `program.py`. `channel.py` carries cells in and frames out, `shells.py` runs code, `limits.py` has the bounds,
which the gateway's end checks. Imports nothing but itself.
"""
