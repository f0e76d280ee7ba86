"""The server.

    server, calls  connections, calls, health
    posture        the isolation of the sandbox as the kernel reports it

Imports all other packages of the daemon; start at server.py.
"""
