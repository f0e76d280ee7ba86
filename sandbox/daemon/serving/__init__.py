"""The server; start at server.py.

server, calls  connections, calls, health
posture        the isolation of the sandbox as the kernel reports it
"""
