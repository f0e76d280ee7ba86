"""What tool code may use: counted while it runs, and stopped past a limit.

    disk_watch, disk_ledger, disk_use          the workspace kept within its limit of disk, by what numbers
    kernel_use                                 sockets, terminals and open files, counted by the same watch
    disk_reading                               what files take, for who asks
    cgroup                                     the kernel's own counts

Imports the supervisor; files, programs and the server import it.
"""
