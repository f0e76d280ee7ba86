"""Sandboxes without Docker and without walls, for tests and development.

    memory_engine, memory_sandbox        the engine, and one of its sandboxes
    local_process, local_daemon          a sandbox's daemon as a plain process: starting it, and what it runs
    local_tree                           how that daemon finds what each call started
    local_fs                             files of this machine
    file_worker, file_worker_process     the process that makes its file calls
    local_workspaces, local_workspace    the files of all threads in a directory, and those of one

It contains nothing, and a gateway that has it listens on loopback alone.
"""
