"""Pid 1, the tool spawner and what they keep: process trees, identities, the filter of tool code.

    init, call_tree                    pid 1: has tool processes started, reaps everything, finds and kills call trees
    call_hold                          what calls started held still, while it is counted what they wrote
    tool_spawner, launch               where tool processes are born, and how each becomes the tool user
    oom_priority, tool_filter, tool_probe    what a tool process is worth to the kernel, and what it says of itself
    control_wire, spawner              orders and notices between server, init and tool spawner; the server's end
    identity, libc                     becoming the server's user; calls of the C library that Python has no name for

Imports no other package of the daemon; start at init.py.
"""
