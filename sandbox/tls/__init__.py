"""The channel over TCP: the bytes of the daemon's Unix socket with mutual TLS, for a sandbox on another machine.

    __main__, server   the relay: a process beside a sandbox that ends TLS and connects to the daemon's socket
    own_addresses      keeps connections of the relay's own network, such as tool code's, from its port
    identity           certificates as names, and the contexts of both ends
    relay, stream      bytes between a plain socket and a TLS connection, at both ends

Start at `relay.py`. Imports only itself and the standard library: it is part of the bundle in a sandbox.
"""
