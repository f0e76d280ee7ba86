"""Which tests `make test` leaves to `make test-all`: what is marked `full`, and what PostgreSQL repeats of SQLite.

Files that need an engine come first: the unit tests fill up what is left of the time.
"""

from __future__ import annotations

import pytest

# Long ones whose matter is looked at by a shorter test beside them, or that repeat one with another seed or shell.
_LONG = (
    "test_a_directory_that_is_exchanged_with_a_link_all_the_time_never_leads_to_the_forbidden_file",
    "test_a_gateway_that_is_killed_again_and_again_and_comes_back_loses_and_repeats_nothing",
    "test_a_gibibyte_of_output_costs_the_gateway_constant_memory",
    "test_of_two_gateways_the_one_that_lives_takes_the_runs_over_again_and_again",
    "test_shells_run_nothing_in_thousands_of_broken_lines_that_was_not_read",
    "test_the_attempts_do_harm_where_nothing_forbids_it",
    "test_whatever_dies_no_file_is_lost_nothing_is_left_and_each_call_is_told_how_it_ended[2]",
)
# Grounds of the conformance suite that `make test` leaves out: what stands around an engine, and the local one.
_GROUNDS = ("docker-around", "memory-around")
_FIRST = ("tests/chaos", "tests/integration", "tests/conformance", "tests/security")


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker."""
    config.addinivalue_line("markers", "full: only `make test-all` runs it")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark repetitions, and put the slow files first."""
    for item in items:
        spec = getattr(item, "callspec", None)
        params = set() if spec is None else {one for one in spec.params.values() if isinstance(one, str)}
        if params & {"postgresql", *_GROUNDS} or item.name in _LONG:
            item.add_marker(pytest.mark.full)
    items.sort(key=lambda item: not item.nodeid.startswith(_FIRST))
