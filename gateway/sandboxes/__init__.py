"""What a tenant sees of its sandboxes, and what is kept of them.

    sandbox_admin                      made, stopped, resumed, removed because somebody asks for it
    counted_creation                   counts creations by the policy's quota
    sandbox_usage                      what they use
    channel_claim                      which directory has their sockets and locks; a start with another is refused
    history_writer, history_reader     what becomes of them, written down, and listed or followed

sandbox/keeper/sandbox_keeper.py leases a thread its sandbox; a call gets it by gateway/tool_calls/thread_sandbox.py.
"""
