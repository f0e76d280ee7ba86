"""The host that a URL or a remote name means to the programs that take one."""

from __future__ import annotations

import re

_PORTS = {
    "http": 80, "https": 443, "ftp": 21, "ftps": 990, "sftp": 22, "scp": 22, "ssh": 22, "git": 9418, "git+ssh": 22,
    "ssh+git": 22, "ws": 80, "wss": 443, "rsync": 873, "telnet": 23, "ldap": 389, "ldaps": 636, "smtp": 25, "imap": 143,
    "tftp": 69, "dict": 2628, "gopher": 70, "mqtt": 1883, "socks4": 1080, "socks5": 1080, "socks5h": 1080,
    "socks4a": 1080,
}  # fmt: skip
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)")
_AUTHORITY = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=%:-]*@)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5})?)?")
_SCP_LIKE = re.compile(r"(?:([A-Za-z0-9._-]+)@)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(?!//)")


def url_host(text: str, *, git: bool = False, scheme: str | None = None) -> tuple[str | None, int | None] | None:
    """Return host and port; (None, None) when they cannot be determined for sure, and None for what names no host.

    `git` reads `user@host:path` too. `scheme` is the one that is meant where none is written.
    """
    match = _URL.match(text)
    if match is not None:
        if match.group(1).lower() == "file":
            return None
        return _authority(match.group(1).lower(), match.group(2))
    if git:
        short = _SCP_LIKE.match(text)
        return (short.group(2).strip("[]").lower(), 22) if short is not None else None
    if scheme is not None:
        return _authority(scheme, re.split(r"[/?#]", text, maxsplit=1)[0])
    return None


def remote_host(text: str) -> str | None:
    """Return the host of `[user@]host:path`, None for a local path."""
    before, colon, _ = text.partition(":")
    if not colon or "/" in before:
        return None
    return before.rpartition("@")[2].strip("[]").lower() or None


def plain_host(text: str) -> str | None:
    """Return a host written as a word, None when it is not plain."""
    host = text.rpartition("@")[2]
    return host.lower() if re.fullmatch(r"[A-Za-z0-9._:-]+|\[[0-9A-Fa-f:.]+\]", host) else None


def _authority(scheme: str, authority: str) -> tuple[str | None, int | None]:
    # Programs differ on a second @, on a backslash and on signs outside of ASCII: such a host is not known.
    match = _AUTHORITY.fullmatch(authority)
    if match is None or authority.count("@") > 1:
        return None, None
    port = int(match.group(2)) if match.group(2) else _PORTS.get(scheme)
    return match.group(1).strip("[]").rstrip(".").lower(), port
