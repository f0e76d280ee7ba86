"""What a tenant sees of its sandboxes, and what is kept of them.

    tended_sandboxes                   made, stopped, resumed, removed because somebody asks for it
    counted_creation                   an engine around an engine that counts creations by the policy's quota
    sandbox_usage                      what they use
    channel_claim                      which directory has their sockets and locks; a start with another is refused
    history_writer, history_reader     what becomes of them, written down, and listed or followed

Who lends a thread its sandbox is sandbox/sandbox_keeper.py, and how a call has it gateway/calls/thread_sandbox.py.
"""
