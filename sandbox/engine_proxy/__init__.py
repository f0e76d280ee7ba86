"""The engine proxy: a Docker socket that lets through what a gateway asks for, and nothing that would make it root.

Whoever may create any container is root on the engine's host: it mounts the host's root directory and is privileged.
A list of paths does not help, for to create containers is what a gateway is for. So what is created is read, too.

    request_head    one request's head, read strictly
    routes          which requests there are, and what is looked at in each
    container_body  what a container may be made of, a volume too
    proxy           the server: asks the three above, and moves bytes
"""
