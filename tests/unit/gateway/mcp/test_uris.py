"""URIs of files in a sandbox."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidArgument
from gateway.mcp.uris import path_of, uri_of


@given(st.binary(max_size=60).filter(lambda name: b"\0" not in name))
def test_each_path_has_a_uri_that_leads_back_to_it(name: bytes) -> None:
    path = f"/workspace/{name.decode('utf-8', 'surrogateescape')}"
    assert uri_of(path).isascii()
    assert path_of(uri_of(path)) == path


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "/workspace/a",
        "file:///workspace/a",
        "sandbox://host/a",
        "sandbox:a",
        "sandbox:///a?b",
        "sandbox:///a#b",
        "http://[",
    ],
)
def test_other_uris_are_refused(uri: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a file of the sandbox"):
        path_of(uri)
