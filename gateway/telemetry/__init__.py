"""Spans, metrics, and ids on each log line. docs/telemetry.md has the tables.

`attributes.py` and `telemetry.py` define every name. `telemetry.py` is what the other packages use, and `providers.py`
alone imports OpenTelemetry's SDK. Each other module observes one part: `rpc.py` the edge, `hook.py` tool calls and
hooks, `observed.py` models, sandboxes and runs, `gauges.py` what is read periodically, `logging.py` the log. The
client's own span is airlock.client_span.

With telemetry off, calls pass through none of this: no hook, no wrapper, no interceptor.

Start at `telemetry.py`. Imports gateway layers below 6, agent and sandbox.
"""
