"""The fixtures of this folder."""

from tests.conformance.file_systems import files, inside, shared, small
from tests.integration.sandbox.live_engine import engine

__all__ = ["engine", "files", "inside", "shared", "small"]
