"""Spans, metrics, and ids on each line of the log. docs/telemetry.md has the tables.

`attributes.py` and `instruments.py` have every name. `telemetry.py` is what the gateway's parts are given;
`opening.py` opens it, by `providers.py`, which alone imports OpenTelemetry's SDK. The rest observe a part each:
`rpc.py` the edge, `admission.py` its queues, `hook.py` tool calls and hooks, `run_span.py` runs, `observed_model.py`
models, `observed_sandboxes.py` sandboxes, `waiting.py` the database, `log_processors.py` the log. `client_span.py` is
the Python client's end.

Where telemetry is off nothing of it is in a call's way: no hook, no wrapper, no interceptor.
"""
