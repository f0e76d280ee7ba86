"""Everything dies, at any moment, under load: gateways, the engine, containers, and the daemons inside.

`own_engine.py` is a Docker engine that a test may kill, `engine_holder.py` what holds it; `supervised.py` are gateways
that are started again. `thread_load.py` calls tools in a thread and knows by `ledger.py` what must be there after it;
`killer.py` kills by a seed; `seen.py` says what a run has not come to yet, and `leftovers.py` what is left that should
not be.
"""
