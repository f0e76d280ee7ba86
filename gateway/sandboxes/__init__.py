"""What a tenant sees of its sandboxes, and what is stored of them.

    sandbox_admin                      creates, stops, resumes and removes sandboxes on request
    counted_creation                   counts creations against the policy's quota
    creation_in_threads                refuses them for threads that are being deleted
    sandbox_usage                      what sandboxes use
    port_forwarding                    connections to ports that programs in a sandbox listen on
    channel_claim                      the directory of their sockets and locks, the same for all gateways
    docker_access                      the Docker engine of a configuration, on this machine or another
    history                            their state transitions, written, and listed or watched

sandbox/keeper/sandbox_keeper.py leases a sandbox to each thread; a call gets it from
gateway/tool_calls/thread_sandbox.py.

Start at `sandbox_admin.py`. Imports gateway layers below 13, agent and sandbox.
"""
