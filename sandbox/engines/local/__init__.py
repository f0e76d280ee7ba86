"""Sandboxes without Docker and without isolation, for tests and development.

    memory_engine                        the engine
    memory_sandbox, stopped_sandboxes    its sandboxes, running and stopped
    local_process, local_daemon          a sandbox's daemon as a plain process
    local_tree                           how that daemon finds the processes of a call
    local_fs                             the files of this machine
    file_worker, file_worker_process     the process that makes its file calls
    local_workspaces, local_workspace    the files of all threads, and of one thread

It contains nothing, and a gateway that uses it listens on loopback only.
"""
