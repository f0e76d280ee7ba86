"""Reads PostgreSQL's password from a file, as container platforms provide secrets."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, urlsplit

from gateway.errors import Misconfigured

_LIMIT_BYTES = 4096


def with_password(url: str, file: Path) -> str:
    """Return a database URL with the password from a file; Misconfigured if the file is unusable or the URL has one."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    if not user:
        raise Misconfigured("database_url: the password needs a user: postgresql://USER@HOST/NAME")
    if ":" in user:
        raise Misconfigured("database_url and database_password_file both have a password: remove one")
    try:
        with file.open("rb") as opened:
            password = opened.read(_LIMIT_BYTES + 1).decode().strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise Misconfigured(f"database_password_file: {file}: {why}") from error
    if not password or "\n" in password or len(password) > _LIMIT_BYTES:
        raise Misconfigured(f"database_password_file: {file}: one line with the password is expected")
    # Not geturl(): it would drop the empty host of a socket's URL.
    return url.replace(f"//{parts.netloc}", f"//{user}:{quote(password, safe='')}@{host}", 1)
