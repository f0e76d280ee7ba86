"""What runs inside a sandbox: pid 1 (init), its child the tool spawner, and the server that answers the gateway.

Runs as root, and without a container (sandbox/engines/local) as any user. But for protobuf and sandbox.v1 it imports
only the standard library and itself. Each package is its map:
    supervisor/     pid 1 and the tool spawner: starting, reaping and killing tool processes
    serving/        the server: connections, calls, health, posture
    programs/       programs and background processes, their input and output
    files/          file calls
    limits/         what tool code may use of disk and kernel
Beside them:
    __main__, settings          composition: arguments, the listening socket, the fork into init and server
    frames, input_stream        messages on a connection
    failures, paths, build, kernel    errors on the wire, a path opened without links, which build and kernel this is
    lazy_module                 how the daemon stays small
    volume_emptier              in a container of its own: removes a tree of any depth from a volume

Each package imports only those below it; pyproject.toml has the order.
"""
