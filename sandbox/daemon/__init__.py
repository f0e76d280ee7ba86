"""What runs inside a sandbox: pid 1 (init) and the server that answers the gateway.

    __main__     composition: settings, the listening socket, the fork into init and server
    init         pid 1: has tool processes started, reaps everything, kills call trees  (root, four capabilities)
    nursery      init's child in which they are born: dies first for memory, as they do (root, four capabilities)
    server       accepts connections, reads requests, dispatches them                   (no capabilities at all)

init.py, nursery.py, launch.py, standing.py, tool_probe.py, call_tree.py and control_wire.py run as root and import
nothing but the standard library and each other.
"""
