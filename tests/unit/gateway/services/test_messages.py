"""Values of requests."""

from __future__ import annotations

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from airlock.v1 import usage_service_pb2 as pb
from gateway.errors import InvalidArgument
from gateway.services.messages import microseconds


@pytest.mark.parametrize("moment", [Timestamp(seconds=2**62), Timestamp(seconds=-(2**62)), Timestamp(nanos=-1)])
def test_a_time_that_does_not_exist_is_refused_by_its_name(moment: Timestamp) -> None:
    with pytest.raises(InvalidArgument, match=r"^since: "):
        microseconds(pb.GetUsageRequest(since=moment), "since")


def test_a_time_is_given_in_microseconds_and_none_where_it_is_not_set() -> None:
    assert microseconds(pb.GetUsageRequest(since=Timestamp(seconds=1, nanos=5_000)), "since") == 1_000_005
    assert microseconds(pb.GetUsageRequest(), "since") is None
