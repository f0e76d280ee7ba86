"""Pid 1, the tool spawner and their parts.

    init, call_tree                   pid 1: orders tool processes, reaps, finds, pauses and kills call trees
    tool_spawner, launch              the parent of tool processes; how they and the server get their users
    waiting_process                   a process that waits for the next start
    file_rules, landlock              which files tool code may use, enforced by the kernel
    tool_filter                       the system call filter of tool code
    control_wire, spawner             messages between server, init and tool spawner; the server's end
    libc                              C library calls that Python lacks

Start at `init.py`. Imports daemon layers below 3.
"""
