"""What runs inside a sandbox: pid 1 (init) and the server that answers the gateway.

    __main__     composition: settings, the listening socket, the fork into init and server
    init         pid 1: starts tool processes, reaps everything, kills call trees       (root, four capabilities)
    server       accepts connections, reads requests, dispatches them                   (no capabilities at all)

init.py, launch.py, call_tree.py and control_wire.py run as root and import nothing but the standard library.
"""
