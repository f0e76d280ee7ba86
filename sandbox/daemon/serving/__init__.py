"""The server.

    server, calls  connections, calls, health
    posture        the isolation of the sandbox as the kernel reports it

Start at `server.py`. Imports daemon layers below 7.
"""
