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
_AMBIGUOUS = {";": "a semicolon", "#": "a number sign", "\\": "a backslash"}
# What is not the same before and after a path is decoded, or decodes to more than a name; _TARGET has none of it.
_DECODES = re.compile(r"[\\;?#\x00-\x1f\x7f]|%[0-9A-Fa-f]{2}")


def judged_path(target: str) -> str | None:
    """Return the path of a request's target that globs are matched with, the same for all spellings of one path.

    It is decoded, without dot segments, a slash at its end and the query. None for a path that servers may read in
    different ways.
    """
    encoded = target.partition("?")[0]
    if len(encoded) > LIMIT_PATH_BYTES or not _TARGET.fullmatch(encoded) or "//" in encoded:
        return None
    try:
        path = unquote(encoded, errors="strict")
    except UnicodeDecodeError:
        return None
    if path.count("/") != encoded.count("/") or _DECODES.search(path):
        return None
    return posixpath.normpath(path)


@lru_cache(maxsize=4096)
def compile_url_glob(text: str) -> PathGlob:
    """Compile a glob of URL paths. Raises ValueError that says what is wrong and what is allowed."""
    if "?" in text and "=" in text.partition("?")[2]:
        raise ValueError(f"{text!r}: rules do not see the query string; write only the path, without the ?")
    if found := _ENCODED.search(text):
        raise ValueError(f"{text!r}: a path is compared decoded; write {unquote(found[0])!r} for {found[0]}")
    if unseen := next((mark for mark in _AMBIGUOUS if mark in text), None):
        raise ValueError(
            f"{text!r} can never match: a path with {_AMBIGUOUS[unseen]} is never judged by its text; leave it out"
        )
    if text != "/" and text.endswith("/"):
        raise ValueError(f"{text!r}: a slash at the end makes no difference; leave it out, or write {text}**")
    return compile_glob(text)
