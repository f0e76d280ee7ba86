"""The program inside a sandbox: pid 1 (init), its child the tool spawner, and the server that answers the gateway.

It runs as root, or in sandbox/engines/local as any user. Except for protobuf and sandbox.v1 it imports only itself and
the standard library. Each package has a map of its modules:
    supervisor/     pid 1 and the tool spawner: starting, reaping and killing tool processes
    serving/        the server: connections, calls, health, posture
    programs/       programs and background processes, their input and output
    files/          file calls
    limits/         limits on tool code's use of disk and kernel
Besides them:
    __main__, settings          arguments, the listening socket, the fork into init and server
    frames, input_stream        messages on a connection
    failures, paths, build, kernel    errors on the wire, paths without links, the build and the kernel
    lazy_module                 keeps the daemon's memory small
    volume_emptier              a program of its own: removes a tree of any depth from a volume

Each package imports only those below it; pyproject.toml has the order.
"""
