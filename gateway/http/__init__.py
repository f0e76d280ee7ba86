"""The HTTP listener: one port beside gRPC that carries the services as JSON, and other protocols over the same services.

Start at `listener.py`, then `app.py`. Imports gateway layers below 15, airlock and sandbox.
"""
