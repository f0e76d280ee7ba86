"""The server.

    server, calls  connections, the calls that they carry, health
    attachments    which gateway processes use the sandbox; its retirement
    proxy_port     tunnels between the gateway and connections inside the sandbox
    posture        the isolation of the sandbox as the kernel reports it

Start at `server.py`. Imports daemon layers below 7.
"""
