"""`airlock bench` at a real gateway, beside a real container."""

from __future__ import annotations

import json
import os
import subprocess

from tests.gateway_process import airlock_process
from tests.integration.gateway.conftest import Pair


def _containers() -> str:
    listed = ["docker", "ps", "--all", "--quiet", "--filter", "label=airlock.kind=bench"]
    return subprocess.run(listed, capture_output=True, text=True, check=True).stdout


def test_it_measures_each_kind_of_call_and_leaves_no_container(pair: Pair) -> None:
    env = {**os.environ, "AIRLOCK_ADDRESS": pair.address, "AIRLOCK_API_KEY": pair.key}
    reported = json.loads(airlock_process("bench", "--calls", "10", "--clients", "2", "--json", env=env).stdout)
    rows = {row["what"]: row for row in reported["rows"]}
    assert set(rows) == {"execute true", "read_file 4 KiB", "write_file 4 KiB", "docker exec true"}
    assert rows["docker exec true"]["ratio"] == 1
    assert all(0 < row["p50_ms"] <= row["p99_ms"] for row in rows.values())
    assert (reported["clients"], reported["calls_per_s"] > 0) == (2, True)
    assert _containers() == ""


def test_without_such_an_image_it_measures_without_a_peer(pair: Pair) -> None:
    env = {**os.environ, "AIRLOCK_ADDRESS": pair.address, "AIRLOCK_API_KEY": pair.key}
    done = airlock_process("bench", "--calls", "10", "--peer-image", "no-such-image", "--json", env=env)
    rows = json.loads(done.stdout)["rows"]
    assert [row["ratio"] for row in rows] == [None] * 3
    assert "no comparison" in done.stderr
