"""The program inside a sandbox: pid 1 (init), its child the tool spawner, and the server that answers the gateway.

It runs as root, or in sandbox/engines/local as any user. Start at `__main__.py`. Imports only itself, sandbox.v1,
protobuf and the standard library. ARCHITECTURE.md lists its packages. Besides them:
    __main__, settings       arguments, the listening socket, the fork into init and server
    frames, failures, paths  messages and errors on a connection; paths without links
    relay                    bytes between two sockets
    temporary_names          the names of files that are being written
    build, lazy_module       the build; defers imports, which keeps the daemon small
    volume_emptier           a program of its own: removes a tree of any depth from a volume
    volume_adopter           another one: gives the files of a copied volume to the user of their new sandbox
"""
