"""The HTTP listener: one port beside gRPC for the services as JSON, and for other protocols over the same services.

Start at `listener.py`, then `app.py`. Imports gateway layers below 15 and airlock.
"""
