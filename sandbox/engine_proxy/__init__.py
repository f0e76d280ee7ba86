"""The engine proxy: a Docker socket that passes the requests of a gateway, and none that would grant root on the host.

A client that can create any container is root on the engine's host: it mounts the host's root directory and is
privileged. A gateway has to create containers, so filtering by path is not enough: the bodies are validated as well.

    routes  the head of one request, parsed strictly; the allowed requests, containers and volumes
    proxy   the server: validates requests and forwards them

Start at `proxy.py`. Imports sandbox layers below 7.
"""
