"""Page tokens: opaque, of one query, and checked."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidArgument
from gateway.support.paging import page_size, paged, place_of, token_of

PLACES = st.tuples(st.integers(-(2**63) + 1, 2**63 - 1), st.text(max_size=64))


@given(PLACES, st.lists(st.text() | st.integers() | st.none()))
def test_a_token_brings_back_the_place_it_was_made_of(place: tuple[int, str], query: list[object]) -> None:
    assert place_of(token_of(place, *query), *query) == place


@given(PLACES)
def test_a_token_of_another_query_is_refused(place: tuple[int, str]) -> None:
    with pytest.raises(InvalidArgument, match="page_token"):
        place_of(token_of(place, "runs", "a"), "runs", "b")


@given(st.text() | st.binary().map(lambda data: base64.urlsafe_b64encode(data).decode()))
def test_what_is_no_token_is_refused(token: str) -> None:
    if token:
        with pytest.raises(InvalidArgument, match="page_token"):
            place_of(token, "runs")


@pytest.mark.parametrize(
    "place", [[True, "x"], [2**63, "x"], [1.5, "x"], [1, 2], [1], "x", None, [1, "\ud800"], [1, "a\0"]]
)
def test_a_token_with_a_place_that_is_none_is_refused(place: object) -> None:
    digest = json.loads(base64.urlsafe_b64decode(token_of((1, "x"), "runs") + "=="))[0]
    reported = [digest, *place] if isinstance(place, list) else place
    token = base64.urlsafe_b64encode(json.dumps(reported).encode()).decode()
    with pytest.raises(InvalidArgument, match="page_token"):
        place_of(token, "runs")


def test_a_page_has_a_token_only_where_more_follows() -> None:
    rows = [(3, "c"), (2, "b"), (1, "a")]
    assert paged(rows, 3, lambda row: row, "q") == (rows, "")
    shown, token = paged(rows, 2, lambda row: row, "q")
    assert (shown, place_of(token, "q")) == (rows[:2], (2, "b"))


@pytest.mark.parametrize("size", [-1, 201])
def test_the_size_of_a_page_is_bounded(size: int) -> None:
    assert (page_size(0), page_size(200)) == (50, 200)
    with pytest.raises(InvalidArgument, match="page_size: between 1 and 200; 0 means 50"):
        page_size(size)
