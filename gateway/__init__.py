"""The gateway: the service and what it stands on. See ARCHITECTURE.md.

Start at `server.py`. Imports agent and sandbox.
"""

from gateway.support.version import airlock_version

__version__ = airlock_version()
