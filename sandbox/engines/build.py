"""The build of the daemon that a gateway works with: one digest over the sources that both have.

deploy/bundle.py writes the digest into the bundle, the daemon says it at hello, and the gateway, which has the same
sources installed, compares it with its own. So two releases with one protocol version are distinguished.
"""

import functools
import hashlib
from pathlib import Path

# Raise it when another bundle is made of the same sources: with changes of deploy/bundle.py or deploy/start_tool.c.
BUNDLE_FORMAT = 3
BUILD_FILE = "BUILD"


def sources_digest(package: Path) -> str:
    """Return the SHA-256 over the daemon's sources in `package`, the directory of `sandbox`: lower-case hex, 64 digits.

    FileNotFoundError when sources are missing: compiled modules alone do not say what they were made of.
    """
    digest = hashlib.sha256(f"airlock bundle {BUNDLE_FORMAT}\n".encode())
    for pattern in ("__init__.py", "daemon/**/*.py", "tls/*.py", "v1/*.py"):
        files = sorted(package.glob(pattern), key=lambda file: file.relative_to(package).as_posix())
        if not files:
            raise FileNotFoundError(f"{package / pattern}: no sources of the daemon are there; install airlock anew")
        for file in files:
            content = file.read_bytes()
            # The length keeps two files from being taken for one whose content looks like both.
            digest.update(f"{file.relative_to(package).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


@functools.cache
def own_build() -> str:
    """Return the digest of the sources installed here. It is read once: what runs is what was there at the start."""
    return sources_digest(Path(__file__).parents[1])
