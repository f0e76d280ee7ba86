"""Sandboxes in Docker containers.

    docker_engine                                    the engine, put together from the parts below
    parts                                            what they share: containers, attached sandboxes, gates of threads
    creation, boot                                   how a sandbox comes up: its configuration, and its start
    endings, stopped_containers                      how sandboxes are stopped and removed, one or all of a tenant
    reconciliation                                   what dead processes left
    docker_pool                                      sandboxes created ahead of demand
    sandbox_listing                                  what lists show of sandboxes
    workspace_transfer                               a thread's files as a whole, and the reserve of the engine's disk
    workspace_claims                                 which volume has a thread's files, and its removal, however deep
    docker_requests, request_threads                 what Docker is asked, in threads; one module imports docker
    container_config                                 the configuration of a container: all its isolation
    engine_address, ssh_tunnel, engine_facts         where the engine is, the way there, what it says of itself
    engine_setup, image_pulls                        the daemon's volume, and images that are pulled
    channels                                         how daemons are reached:
    shared_directory, relays                         by sockets on this machine, by relays on another
    lock_directory                                   what several processes of a gateway know of each other's sandboxes
    channel_directory                                which directory has the sockets, and which containers use it

Docker sees digests and sizes. Ownership is in labels, and in files that are locked (lock_directory.py).

Start at `docker_engine.py`. Imports sandbox.engines and sandbox layers below 6.
"""
