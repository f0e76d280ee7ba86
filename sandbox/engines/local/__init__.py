"""Sandboxes without Docker and without walls, for tests and development.

    memory_engine, memory_sandbox        the engine, and one of its sandboxes
    local_daemon, local_spawner          the daemon's own rooms in this process, and its programs on this machine
    local_workspaces, local_workspace    the files of all threads in a directory, and those of one

It contains nothing, and a gateway that has it listens on loopback alone.
"""
