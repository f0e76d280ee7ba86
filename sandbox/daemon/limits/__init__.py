"""Limits on tool code: usage is counted while it runs, and tool code is stopped past a limit.

    disk_watch, disk_ledger    keeps the workspace within its disk limit
    disk_use                   counts disk usage, for the watch and for callers
    kernel                     the cgroup; sockets, terminals and open files

Start at `disk_watch.py`. Imports daemon layers below 4; files, programs and the server import it.
"""
