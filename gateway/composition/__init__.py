"""Builds the parts of a gateway, in this order; the exit stack closes them in reverse order.

foundation.py   database, telemetry, policies      engines.py     the engine
sandboxes.py    keeper, all decorators             services.py    tool calls, runs, gRPC services
http.py         the HTTP listener                  snapshot_place.py  the directory or bucket of snapshots

Start at `foundation.py`. Imports gateway layers below 17 and sandbox.
"""
