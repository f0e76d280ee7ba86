"""Pid 1, the tool spawner and their parts: process trees, identities, the system call filter of tool code.

    init, call_tree                          pid 1: orders tool processes, reaps, finds and kills call trees
    call_pause                               pauses everything that calls started, while their files are counted
    tool_spawner, launch                     the parent of tool processes, and how each becomes the tool user
    file_rules, landlock, rule_numbers       which files tool code may use, enforced by the kernel
    oom_priority, tool_filter, tool_probe    the kernel's treatment of tool processes, and a self-test of it
    control_wire, spawner                    messages between server, init and tool spawner; the server's end
    identity, libc                           becoming the server's user; C library calls that Python lacks

Imports no other package of the daemon; start at init.py.
"""
