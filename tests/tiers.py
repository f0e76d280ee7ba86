"""Which tests `make test` leaves to `make test-all`: those marked `full`.

`make test` keeps all unit tests, the conformance suite on Docker, the security suite without its fuzzing, one seed of
chaos, and of the integration tests those of a call's way, of what a killed gateway leaves, and of the pages that a
newcomer follows.
Files that need an engine or processes come first: the short unit tests fill up what is left of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

# Long tests: a shorter one beside each looks at the same, or it repeats one with another seed or shell.
LONG = (
    "test_a_call_whose_approval_stays_unanswered_asks_the_client_again",
    "test_a_controller_with_a_stale_cache_makes_too_many_and_gives_none_twice",
    "test_a_directory_of_many_entries_is_listed_in_pages_that_fit_together[RemoteFS over TLS]",
    "test_a_directory_that_is_exchanged_with_a_link_all_the_time_never_leads_to_the_forbidden_file",
    "test_a_gateway_that_ends_in_the_midst_ends_its_tunnels_and_the_next_one_works[kill]",
    "test_a_gateway_that_stops_hands_its_runs_over_or_ends_them_and_leaves_nothing[sqlite-cancel]",
    "test_a_gateway_that_stops_says_so_and_lets_calls_end_but_takes_no_new_one[alone-hangup]",
    "test_a_gateway_that_stops_says_so_and_lets_calls_end_but_takes_no_new_one[workers-hangup]",
    "test_a_hundred_commands_at_once_do_not_wait_for_each_other",
    "test_a_line_of_200_megabytes_is_paged_by_lines_and_then_by_bytes[RemoteFS over TLS]",
    "test_a_local_address_that_cannot_be_used_ends_the_command",
    "test_a_model_that_misbehaves_ends_the_run_with_one_clear_reason[drop]",
    "test_a_model_that_misbehaves_ends_the_run_with_one_clear_reason[nonsense]",
    "test_a_result_that_is_not_evicted_breaks_the_script_and_fails_the_demo",
    "test_an_interrupted_demo_stops_its_gateway_and_leaves_nothing_behind[ctrl-c]",
    "test_gateways_that_fill_one_new_runtime_volume_at_once_all_succeed",
    "test_shells_run_nothing_in_thousands_of_broken_lines_that_was_not_read",
    "test_the_attempts_do_harm_where_nothing_forbids_it",
    "test_the_command_line_passes_ends_and_resets_on",
    "test_the_process_that_waits_ends_when_no_program_is_started_for_a_while",
    "test_the_tests_of_the_engine_run_on_a_real_cluster_by_its_kubeconfig",
    "test_whatever_dies_no_file_is_lost_nothing_is_left_and_each_call_reports_how_it_ended[2]",
)
# Of one test for each program, those that stand for all.
SAMPLED = {
    "test_the_worst_line_is_judged_about_as_fast_as_any": {"cat"},
    "test_the_worst_line_of_a_program_is_read_at_a_small_multiple_of_parsing_one": {"cat"},
}
# Parameters: the other database, and the kinds of credentials besides keys.
_REPEATED = {"postgresql", "certificates", "tokens"}
# Parameters of the conformance suite: the engines besides Docker.
CONFORMANCE = "tests/conformance/"
_OTHER_ENGINES = {
    "docker-around",
    "docker-remote",
    "memory",
    "memory-around",
    "memory-tls",
    "kubernetes",
    "kubernetes-agent-sandbox",
    "kubernetes-around",
    "kubernetes-tenants",
}
BEYOND = (
    # One thing after another that the seed of chaos kills at once.
    "tests/chaos/test_engine_restarts.py",
    # What inspect-ai's own suite asks of the adapter, which repeats the conformance suite over the wire.
    "tests/conformance/test_inspect_self_check.py",
    # What needs sandboxes on the cluster for tests.
    "tests/kubernetes/test_doctor.py",
    "tests/kubernetes/test_namespaces.py",
    "tests/kubernetes/test_pool.py",
    "tests/kubernetes/test_reachability.py",
    "tests/kubernetes/test_sandbox_objects.py",
    "tests/kubernetes/test_sandbox_volumes.py",
    "tests/kubernetes/test_sandboxes.py",
    "tests/kubernetes/test_volume_snapshots.py",
    # Many inputs, which are found by chance.
    "tests/security/daemon/test_fuzz.py",
    # The model of many gateways, and the table that its page has of it.
    "tests/simulation/test_counts.py",
    "tests/simulation/test_model.py",
)
# What needs real model servers.
MODELS = "tests/models/"
INTEGRATION = "tests/integration/"
# The integration tests that every change must pass.
CORE = (
    "e2b/test_bad_requests.py",
    "e2b/test_commands.py",
    "e2b/test_files.py",
    "e2b/test_sandboxes.py",
    "gateway/test_approvals.py",
    "gateway/test_files.py",
    "gateway/test_forward.py",
    "gateway/test_mcp_agents.py",
    "gateway/test_memory_engine.py",
    "gateway/test_runs.py",
    "gateway/test_stopping.py",
    "gateway/test_tenants.py",
    "gateway/test_tool_calls.py",
    "mcp/test_access.py",
    "mcp/test_server.py",
    "sandbox/test_docker_engine.py",
    "network/test_docker_tools.py",
    "network/test_door.py",
    "network/test_opened.py",
    "network/test_records.py",
    "sandbox/test_execute.py",
    "test_demo.py",
    "test_first_pages.py",
    "test_tutorial.py",
)
_FIRST = (
    *("tests/chaos", "tests/integration", "tests/models", "tests/conformance", "tests/security"),
    *("tests/kubernetes", "tests/unit/sandbox"),
)


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker."""
    config.addinivalue_line("markers", "full: only `make test-all` runs it")


def left_out_files(config: pytest.Config) -> Sequence[Path]:
    """Return the files that this run leaves out whole, so does not even import."""
    return [path for path in config.rootpath.joinpath("tests").rglob("test_*.py") if _is_left_out(path, config)]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out whole files: importing some of them takes seconds."""
    return _is_left_out(collection_path, config) or None


def _is_left_out(path: Path, config: pytest.Config) -> bool:
    file = path.relative_to(config.rootpath).as_posix()
    return config.option.markexpr == "not full" and path.name.startswith("test_") and is_left_out_whole(file)


@pytest.hookimpl(tryfirst=True)  # before pytest reads the markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what only `make test-all` runs, and put the slow files first."""
    for item in items:
        if _is_full(item):
            item.add_marker(pytest.mark.full)
    items.sort(key=lambda item: not item.nodeid.startswith(_FIRST))


def _is_full(item: pytest.Item) -> bool:
    spec = getattr(item, "callspec", None)
    params = set() if spec is None else {one for one in spec.params.values() if isinstance(one, str)}
    name = item.name.partition("[")[0]
    is_sampled = name in SAMPLED and params.isdisjoint(SAMPLED[name])
    is_beyond = is_left_out_whole(item.nodeid.partition("::")[0])
    repeated = _REPEATED | _OTHER_ENGINES if item.nodeid.startswith(CONFORMANCE) else _REPEATED
    return is_beyond or is_sampled or bool(params & repeated) or item.name in LONG


def is_left_out_whole(file: str) -> bool:
    """Return whether `make test` runs nothing of a file, given by its path from the root."""
    is_minor = file.startswith(INTEGRATION) and file.removeprefix(INTEGRATION) not in CORE
    return file in BEYOND or file.startswith(MODELS) or is_minor
