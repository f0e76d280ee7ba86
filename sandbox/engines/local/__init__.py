"""Sandboxes without Docker and without isolation, for tests and development.

    memory_engine                   the engine, put together from the parts below
    memory_creation                 how a thread gets its sandbox
    memory_endings                  how sandboxes are stopped and removed
    memory_files                    a thread's files as a whole
    memory_sandboxes                which sandboxes there are
    memory_sandbox                  one of them, running or stopped
    local_process, local_daemon     a sandbox's daemon as a plain process
    local_tree                      how that daemon finds the processes of a call
    local_fs, file_worker_process   the files of this machine, and the process that makes its file calls
    local_workspaces                the files of all threads

It isolates nothing, so a gateway that uses it listens on loopback only.

Start at `memory_engine.py`. Imports sandbox.engines and sandbox layers below 6.
"""
