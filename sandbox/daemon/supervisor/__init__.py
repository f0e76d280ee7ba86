"""Pid 1, the tool spawner and their parts.

    init, call_tree                   pid 1: orders tool processes, reaps, finds, pauses and kills call trees
    tool_spawner, launch              the parent of tool processes, and how each becomes the tool user
    file_rules, landlock              which files tool code may use, enforced by the kernel
    tool_filter, tool_probe           the system call filter of tool code, and a self-test of a tool process
    control_wire, spawner             messages between server, init and tool spawner; the server's end
    identity, libc                    becoming the server's user; C library calls that Python lacks

Start at `init.py`. Imports daemon layers below 3.
"""
