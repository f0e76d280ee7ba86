"""Sandboxes without Docker and without walls, for tests and development.

    memory_engine, memory_sandbox        the engine, and one of its sandboxes
    local_daemon, local_spawner          the daemon's own modules in this process, and its programs on this machine
    local_work, local_work_server        what forks or takes long, in another process
    local_fs                             files of this machine
    local_workspaces, local_workspace    the files of all threads in a directory, and those of one

It contains nothing, and a gateway that has it listens on loopback alone.
"""
