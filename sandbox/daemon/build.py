"""The build of the daemon, from the file that deploy/bundle.py wrote."""

import sys


def read_build(prefix: str) -> str:
    """Return the digest of the sources of the bundle at `prefix`, "" without a bundle."""
    # Other content is returned as it is, up to 64 characters, and the gateway refuses the daemon.
    try:
        with open(f"{prefix}/BUILD", "rb", buffering=0) as file:
            return file.read(64).strip().decode("ascii", "replace")
    except OSError:
        return ""


# Read once, at start.
BUILD = read_build(sys.prefix)
