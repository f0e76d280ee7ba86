"""The gateway: the service and what it stands on. See ARCHITECTURE.md."""
