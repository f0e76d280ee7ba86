"""URIs of files in the sandbox: sandbox:///workspace/report.txt. A file: URI would mean the client's own machine."""

from urllib.parse import quote, unquote, urlsplit

from gateway.errors import InvalidArgument

SCHEME = "sandbox"
TEMPLATE = f"{SCHEME}:///{{+path}}"


def uri_of(path: str) -> str:
    """Return the URI of an absolute path."""
    return f"{SCHEME}://{quote(path, errors='surrogateescape')}"


def path_of(uri: str) -> str:
    """Return the absolute path of a URI; InvalidArgument if it is another kind of URI."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme != SCHEME or parts.netloc or not parts.path.startswith("/") or parts.query or parts.fragment:
        raise InvalidArgument(
            f"uri: {uri[:200]!r} is not a file of the sandbox, such as {SCHEME}:///workspace/report.txt"
        )
    return unquote(parts.path, errors="surrogateescape")
