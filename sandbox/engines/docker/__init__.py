"""Sandboxes in Docker containers.

    docker_engine                                    the engine: what it is asked for
    docker_ground, docker_listing, docker_starting   its layers, each on the one before
    docker_stopping, docker_pool, docker_reconciling  the next ones
    docker_workspaces, engine_disk                   a thread's files as a whole, and the reserve of the engine's disk
    volume_emptying                                  and their removal, however deep, while it goes on making volumes
    docker_requests                                  what Docker is asked, in threads; nothing else imports docker
    container_config, shared_memory_limits           what a container is made of: every wall
    posture, mount_rules, host_kernel                what the kernel says of it, and whether that is weaker than asked
    handshake, build                                 the first words with its daemon, and of which release that is
    runtime_volume, image_pulls                      the daemon brought along, and images that are brought
    pooled_checks, pool_locks, workspace_claims      the pool: whether one is fit, whose it is, where its files are
    lock_directory, stopped_sandboxes                what several processes of a gateway know of each other's
    channel_directory                                which directory has the sockets, and which containers use it
    adopted_sandbox                                  one that an earlier process left

Docker is told digests and sizes; what belongs to whom is in labels, and in files that are locked (lock_directory.py).
"""
