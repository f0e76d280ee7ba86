"""The path of a URL as rules see it: settled, so that a rule and the server that is asked read the same path.

A server may decode a path before it looks at it, take ".." away, or drop what stands behind a semicolon. What every
server reads alike is settled (`/a/./b`, `/%7Euser`); what some read otherwise (`/a%2Fb`, `//a`, `/%252e`) is not a path
that a rule can judge.
"""

import posixpath
import re
from functools import lru_cache
from urllib.parse import unquote

from gateway.policy.globs import LIMIT_PATH_BYTES, PathGlob, compile_glob

_TARGET = re.compile(r"/(?:[A-Za-z0-9._~!$&'()*+,=:@/-]|%[0-9A-Fa-f]{2})*")
_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")
_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]")
_AMBIGUOUS = {"/": "a slash", "\\": "a backslash", ";": "a semicolon", "?": "a question mark", "#": "a number sign"}


def settled_path(target: str) -> str:
    """Return the path of a request's target as it must be sent on: the same for all spellings that mean the same.

    Letters, digits and -._~ are never encoded, dot segments are gone; the query is left out, other encodings stay.
    Raises ValueError for a path that servers may read in different ways.
    """
    path = target.partition("?")[0]
    if len(path) > LIMIT_PATH_BYTES:
        raise ValueError(f"the path is longer than {LIMIT_PATH_BYTES} bytes")
    if not path.startswith("/"):
        raise ValueError("a path starts with /")
    if not _TARGET.fullmatch(path):
        raise ValueError("the path has characters that have to be encoded, a semicolon, or % without two digits")
    path = _ENCODED.sub(_without_need, path)
    _check_decoded(path)
    *directories, last = path[1:].split("/")
    if "" in directories:
        raise ValueError("the path has two slashes in a row")
    settled = posixpath.normpath(path)
    return f"{settled.rstrip('/')}/" if last in ("", ".", "..") else settled


def judged_path(target: str) -> str | None:
    """Return the path that globs are matched with: settled and decoded, without a slash at its end.

    None where it cannot be settled.
    """
    try:
        path = unquote(settled_path(target))
    except ValueError:
        return None
    return path.rstrip("/") or "/"


@lru_cache(maxsize=4096)
def compile_url_glob(text: str) -> PathGlob:
    """Compile a glob of URL paths. Raises ValueError that says what is wrong and what is allowed."""
    if "?" in text and "=" in text.partition("?")[2]:
        raise ValueError(f"{text!r}: a rule sees no query; write the path before the ?")
    if found := _ENCODED.search(text):
        raise ValueError(f"{text!r}: a path is compared decoded; write {unquote(found[0])!r} for {found[0]}")
    if unseen := next((mark for mark in ";#\\" if mark in text), None):
        raise ValueError(f"{text!r} matches nothing: a path with {_AMBIGUOUS[unseen]} is never judged by its text")
    if text != "/" and text.endswith("/"):
        raise ValueError(f"{text!r}: a slash at the end makes no difference; leave it out, or write {text}**")
    return compile_glob(text)


def _without_need(found: re.Match[str]) -> str:
    character = chr(int(found[0][1:], 16))
    return character if _UNRESERVED.fullmatch(character) else found[0].upper()


def _check_decoded(path: str) -> None:
    """Raise ValueError for what decoding turns into something else than a name."""
    for code in set(_ENCODED.findall(path)):
        character = chr(int(code[1:], 16))
        if character in _AMBIGUOUS:
            raise ValueError(f"the path has {_AMBIGUOUS[character]}, encoded ({code})")
        if ord(character) < 0x20 or ord(character) == 0x7F:
            raise ValueError(f"the path has a control character, encoded ({code})")
    try:
        decoded = unquote(path, errors="strict")
    except UnicodeDecodeError as error:
        raise ValueError("the path is not UTF-8 when it is decoded") from error
    if _ENCODED.search(decoded):
        raise ValueError("the path is encoded twice")
