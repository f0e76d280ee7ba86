"""Tools: what a model can call, and the way of a call from its arguments to its result.

Start at `tool.py` (what a tool is) and `runner.py` (judging, asking, running). Imports agent layers below 7.
"""
