"""The fixtures of this folder."""

from tests.integration.sandbox.live_engine import engine

__all__ = ["engine"]
