"""Spans, metrics, and ids on each line of the log. docs/telemetry.md has the tables.

`attributes.py` and `instruments.py` have every name. `telemetry.py` is what the gateway's parts are given;
`opening.py` opens it, by `providers.py`, which alone imports OpenTelemetry's SDK. The rest observe a part each: `rpc.py` at the edge, `admission.py` at its queues, `hook.py` at tool calls and hooks,
`run_span.py` at runs, `observed_model.py` at models, `observed_sandboxes.py` at sandboxes, `waiting.py` at what the
database knows, and `log_processors.py` at the log. `client_span.py` is the Python client's end.

Where telemetry is off nothing of it is in a call's way: no hook, no wrapper, no interceptor.
"""
