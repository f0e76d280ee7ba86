"""The server: connections, calls, and what it says of itself.

    server                             connections and calls
    health, posture, mounts            what is said of the daemon and the sandbox
    loop_log                           the event loop's log, without the logging package

Imports all other packages of the daemon; start at server.py.
"""
