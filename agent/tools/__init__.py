"""Tools: what a model can call, and the way of a call from its arguments to its result.

Start at `tool.py` (what a tool is) and `runner.py` (judging, asking, running). `toolbox.py` validates arguments,
`eviction.py` keeps large results in the sandbox, `approval.py` and `asking.py` wait for a person.
Imports hooks and the agent's vocabulary, no capability and no model driver.
"""
