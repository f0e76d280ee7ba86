"""Which build of the daemon this is: what deploy/bundle.py left beside it."""

import sys

_DIGITS = 64


def read_build(prefix: str) -> str:
    """Return the digest of the sources that the bundle at `prefix` was made of, "" where there is no bundle.

    Whatever else stands in the file is returned as it is, 64 characters of it: the gateway then refuses this daemon.
    """
    try:
        with open(f"{prefix}/BUILD", "rb", buffering=0) as file:
            return file.read(_DIGITS).strip().decode("ascii", "replace")
    except OSError:
        return ""


# Taken at start, and once.
BUILD = read_build(sys.prefix)
