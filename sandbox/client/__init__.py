"""The gateway's end of the channel to a daemon, which it does not trust.

Start at `channel_sandbox.py`, a sandbox behind a channel. `channel.py` carries frames to a daemon at an address:
`unix_address.py`, or `tls_address.py` with the certificates of `channel_authority.py`, whose parts `certificates.py`
shares with the gateway's other authority. `presence.py` is this process's place at a daemon that gateways on several
machines share. `arguments.py` validates what callers ask, `replies.py` what the daemon answers, and `remote_fs.py`,
`remote_shell.py` and `remote_processes.py` make the calls. Imports sandbox layers below 5.
"""
