"""What cannot be asked of a cluster says why, and what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandbox.engines.kubernetes.kubernetes_requests import KubernetesRequests
from sandbox.engines.kubernetes.resources import SECRETS
from sandbox.errors import EngineUnavailable


async def _pause(_seconds: float) -> None: ...


async def test_without_a_cluster_the_configuration_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(EngineUnavailable, match=r"runs in none .* set sandbox.kubernetes.kubeconfig"):
        await KubernetesRequests().get(SECRETS, "n", "p")


async def test_a_kubeconfig_that_is_not_there_or_lacks_the_context_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match=r"sandbox\.kubernetes\.kubeconfig"):
        await KubernetesRequests(tmp_path / "none").get(SECRETS, "n", "p")
    empty = tmp_path / "config"
    empty.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "contexts": [], "clusters": [], "users": []}))
    with pytest.raises(EngineUnavailable, match="context"):
        await KubernetesRequests(empty, "other").get(SECRETS, "n", "p")


async def test_an_api_that_does_not_answer_is_tried_again_and_then_named(tmp_path: Path) -> None:
    config = tmp_path / "config"
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    whole = {"clusters": [cluster], "contexts": [context], "users": [{"name": "u", "user": {}}], "current-context": "x"}
    config.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **whole}))
    requests = KubernetesRequests(config, pause=_pause)
    with pytest.raises(EngineUnavailable, match=r"127.0.0.1:1 does not answer: .* check that it runs"):
        await requests.get(SECRETS, "n", "p")
    await requests.close()
