"""The server: connections, calls, and its reports about itself.

    server, calls                      connections and calls
    health, posture, mounts            reports about the daemon and the sandbox
    loop_log                           the event loop's log, without the logging package

Imports all other packages of the daemon; start at server.py.
"""
