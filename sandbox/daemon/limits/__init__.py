"""Limits on tool code: usage is counted while it runs, and tool code is stopped past a limit.

    disk_watch, disk_ledger, disk_use          keeps the workspace within its disk limit
    kernel_use                                 sockets, terminals and open files, counted by the same watch
    disk_reading                               disk usage for callers
    cgroup                                     the kernel's own accounting

Imports the supervisor; files, programs and the server import it.
"""
