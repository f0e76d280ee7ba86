"""The gateway: the server process, its client and its command line. See ARCHITECTURE.md.

Start at `server.py`. Imports agent and sandbox.
"""

from gateway.support.version import airlock_version

__version__ = airlock_version()
