"""Limits on tool code: usage is counted while it runs, and tool code is stopped past a limit.

disk_watch, disk_ledger, disk_use    keeps the workspace within its disk limit
disk_reading                         disk usage for callers
kernel                               the cgroup; sockets, terminals and open files
"""
