"""The server scenarios of the protocol's own conformance suite against a real gateway."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

import pytest

from tests.integration.mcp.conftest import LEGACY, MODERN, Served
from tests.integration.mcp.key_proxy import key_proxy
from tests.integration.mcp.node_programs import CONFORMANCE, environment, node_program

_TOOL = "calls a tool that a server under test has to add"
_FILE = "reads a resource that a server under test has to add; a gateway's are files of the sandbox"
_NO_PROMPTS, _NO_COMPLETION = "a gateway has no prompts", "a gateway has nothing to complete"
_NO_SUBSCRIPTION, _NO_LOGGING = "a gateway offers no subscriptions", "a gateway offers no logging; output is progress"
_NO_TASKS = "an extension that a gateway does not have"
_OF_BOTH = {
    "completion-complete": _NO_COMPLETION,
    **dict.fromkeys(("prompts-list", "prompts-get-simple", "prompts-get-with-args"), _NO_PROMPTS),
    **dict.fromkeys(("prompts-get-embedded-resource", "prompts-get-with-image"), _NO_PROMPTS),
    **dict.fromkeys(("resources-read-text", "resources-read-binary", "resources-templates-read"), _FILE),
    **dict.fromkeys(("tools-call-image", "tools-call-audio", "tools-call-embedded-resource"), _TOOL),
    **dict.fromkeys(("tools-call-mixed-content", "tools-call-with-progress", "json-schema-2020-12"), _TOOL),
}
_INPUTS = ("basic-elicitation", "basic-sampling", "basic-list-roots", "request-state", "multiple-input-requests")
_MORE_INPUTS = ("multi-round", "non-tool-request", "result-type", "tampered-state", "capability-check")
_TASKS = ("lifecycle", "capability-negotiation", "wire-fields", "request-state-removal", "mrtr-input")
_MORE_TASKS = ("request-headers", "dispatch-and-envelope", "required-task-error", "mrtr-composition")
FAILING: Mapping[str, Mapping[str, str]] = {
    LEGACY: {
        **_OF_BOTH,
        "logging-set-level": _NO_LOGGING,
        "tools-call-with-logging": _NO_LOGGING,
        **dict.fromkeys(("resources-subscribe", "resources-unsubscribe"), _NO_SUBSCRIPTION),
        **dict.fromkeys(("tools-call-sampling", "tools-call-elicitation"), _TOOL),
        **dict.fromkeys(("elicitation-sep1034-defaults", "elicitation-sep1330-enums"), _TOOL),
        "server-sse-polling": "a call ends with its connection, so that there is nothing to poll for",
    },
    MODERN: {
        **_OF_BOTH,
        "server-stateless": "2 of 25 checks call a tool that a server under test has to add",
        "caching": "1 of 7 checks lists prompts, which a gateway does not have",
        "http-custom-header-server-validation": _TOOL,
        **{f"input-required-result-{name}": _TOOL for name in (*_INPUTS, *_MORE_INPUTS)},
        **{f"tasks-{name}": _NO_TASKS for name in (*_TASKS, *_MORE_TASKS)},
    },
}


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
def test_only_those_scenarios_fail_that_need_what_a_gateway_does_not_have(gateway: Served, revision: str) -> None:
    command = node_program(CONFORMANCE)
    with key_proxy(gateway.http, gateway.key) as address:
        options = ["server", "--url", f"http://{address}/mcp", "--requirements", revision]
        done = subprocess.run(
            [*command, *options], capture_output=True, text=True, check=False, timeout=600, env=environment(command)
        )
    found = re.findall(r"^([✓✗]) ([\w-]+): (\d+) passed, (\d+) failed", done.stdout, re.MULTILINE)
    assert len(found) > 30, done.stdout + done.stderr
    failed = {name for mark, name, _, _ in found if mark == "✗"}
    print(f"{revision}: {len(found) - len(failed)} of {len(found)} scenarios pass")
    assert failed == set(FAILING[revision])
