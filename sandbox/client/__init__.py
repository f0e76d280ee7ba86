"""The gateway's end of the channel to a daemon; nothing that comes from the other end is believed.

Start at `channel_sandbox.py`, a sandbox behind a channel. `channel.py` and `connection.py` carry frames,
`replies.py` checks answers, and `remote_fs.py`, `remote_shell.py` and `remote_processes.py` ask.
"""
