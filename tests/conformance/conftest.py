"""The fixtures of this folder."""

from tests.conformance.file_systems import files, inside, relayed, shared, small
from tests.integration.sandbox.live_engine import engine

__all__ = ["engine", "files", "inside", "relayed", "shared", "small"]
