"""What runs inside a sandbox: pid 1 (init), its child the nursery, and the server that answers the gateway.

Runs as root; but for __main__ they import nothing but the standard library and each other:
    __main__, settings          composition: arguments, the listening socket, the fork into init and server
    identity, foreign           becoming the server's user; calls of the C library that Python has no name for
    init, call_tree             pid 1: has tool processes started, reaps everything, finds and kills call trees
    call_hold                   what calls started held still, while it is counted what they wrote
    nursery, launch             where tool processes are born, and how each becomes the tool user
    standing, tool_filter, tool_probe    what a tool process is worth to the kernel, and what it says of itself
    control_wire                orders and notices between server, init and nursery
Programs and processes, by the server, which has no capabilities at all:
    server, frames, input_stream                     connections and calls
    health, posture, mounts, build, failures         what is said of the daemon and the sandbox, and of a failed call
    lean_imports, loop_log                           how the daemon stays small
    spawner, cgroup, pipes                           the line to init, the kernel's counts, what programs write into
    exec, exec_request, program_io                   one program, from its start to its outcome
    output, output_sender, stream_limit, characters  its output within bounds
    spill, spill_quota, private_file                 its output in a file
    processes, process_request, background_process   programs that outlive a call
    process_streams, process_input, process_output, output_file, pace, terminal    what those read and write
Files, with the tool user's rights and never through a link:
    paths, entries                                   a place, and what is there
    workspace_mode                                   tool code may not lock itself out
    read_files, write_files, edit_files, tree_files, replacement    the calls; a file is replaced whole or not at all
    search, glob, grep, walk                         finding names and text
    child_work, thread_work                          what may take long, beside the server's loop
    disk_watch, disk_ledger, disk_use                the workspace kept within its limit of disk, by what numbers
    kernel_use                                       sockets, terminals and open files, counted by the same watch
    disk_reading                                     what files take, for who asks
In a container of its own, for a volume that the engine cannot remove:
    volume_emptier                                   removes a tree of any depth
"""
