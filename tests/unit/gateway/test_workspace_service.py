"""What WorkspaceService takes of a client's stream."""

from __future__ import annotations

import pytest

from gateway.errors import TooLarge
from gateway.services.workspace_service import _checked
from gateway.v1 import workspace_service_pb2 as pb

MIB = 1024 * 1024


def test_a_message_has_a_mebibyte_of_a_file_at_most() -> None:
    assert len(_checked(pb.WriteFileRequest(data=bytes(MIB)))) == MIB
    with pytest.raises(TooLarge, match="smaller pieces"):
        _checked(pb.WriteFileRequest(data=bytes(MIB + 1)))
