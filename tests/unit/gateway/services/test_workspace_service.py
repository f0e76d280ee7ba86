"""What WorkspaceService takes of a client's stream, what of a call is judged, and how an entry is reported."""

from __future__ import annotations

import pytest

from airlock.v1 import workspace_service_pb2 as pb
from gateway.errors import InvalidPath, TooLarge
from gateway.services.workspace_service import _checked, entry_message, judged
from sandbox.protocols import Entry

MIB = 1024 * 1024


def test_a_message_has_a_mebibyte_of_a_file_at_most() -> None:
    assert len(_checked(pb.WriteFileRequest(data=bytes(MIB)))) == MIB
    with pytest.raises(TooLarge, match="smaller pieces"):
        _checked(pb.WriteFileRequest(data=bytes(MIB + 1)))


def test_what_else_is_asked_of_a_path_is_judged_with_it_and_so_approved_with_it() -> None:
    assert judged("a", operation="") == {"path": "/workspace/a"}
    asked = [
        judged("a"),
        judged("a", byte_offset=5),
        judged("a", operation="remove"),
        judged("a", operation="remove", recursive=True),
        judged("a", operation="make_directory"),
    ]
    assert len({str(one) for one in asked}) == len(asked)
    with pytest.raises(InvalidPath):
        judged("")


@pytest.mark.parametrize(
    "path, below, name",
    [
        ("/workspace/a.txt", "", "a.txt"),
        ("a.txt", "", "a.txt"),
        ("/", "", "/"),
        ("/workspace/a/b.py", "/workspace", "a/b.py"),
        ("/a", "/", "a"),
        ("/workspace/\udcff", "", "\\xff"),
    ],
)
def test_an_entry_has_the_name_that_people_read(path: str, below: str, name: str) -> None:
    assert entry_message(Entry(path, "file", 1, 0o644, 0), below=below).name == name


def test_the_etag_is_of_size_and_time_and_no_time_is_too_far() -> None:
    times_ns = (-(2**63), -1, 0, 1, 2**63 - 1)
    entries = [Entry("a", "other", size, 0, time_ns) for size in (0, 1) for time_ns in times_ns]
    assert len({entry_message(entry).etag for entry in entries}) == len(entries)
