"""Sandboxes without Docker and without isolation, for tests and development.

    memory_engine                   the engine: how sandboxes are made and removed, and a thread's files as a whole
    memory_sandboxes                which sandboxes there are, running or stopped
    local_process, local_daemon     a sandbox's daemon as a plain process
    local_tree                      how that daemon finds the processes of a call
    local_fs, file_worker_process   the files of this machine, and the process that makes its file calls
    local_workspaces                the files of all threads

It isolates nothing, so a gateway that uses it listens on loopback only.

Start at `memory_engine.py`. Imports sandbox.engines and sandbox layers below 6.
"""
