"""`airlock doctor` tries things rather than believing them, and says how to fix what does not work."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.gateway_process import airlock, make_home
from tests.waiting import eventually


def test_doctor_tries_a_sandbox_and_leaves_nothing() -> None:
    findings = {one["what"]: one for one in json.loads(airlock("doctor", "--json").stdout)["findings"]}
    for what in ("engine", "seccomp", "sandbox", "limit memory", "limit processes", "limit cpu", "isolation"):
        assert findings[what]["state"] == "ok", findings[what]
    assert findings["limit memory"]["detail"].startswith("1024 MiB")
    # Another worker's tests may run `airlock doctor` at the same time.
    assert eventually(lambda: _sandboxes_of_doctor() == "", 60)


def _sandboxes_of_doctor() -> str:
    filters = ["--filter", "label=airlock.kind", "--filter", "name=airlock-doctor"]
    return subprocess.run(["docker", "ps", "-aq", *filters], capture_output=True, text=True, check=True).stdout


def test_doctor_says_how_to_fix_a_missing_engine(tmp_path: Path) -> None:
    looked = airlock("doctor", "--engine-url", f"unix://{tmp_path}/no.sock", "--json", check=False)
    assert looked.returncode == 1
    engine = json.loads(looked.stdout)["findings"][-1]
    assert (engine["what"], engine["state"]) == ("engine", "failed")
    assert "set another address in --engine-url" in engine["fix"]


def test_doctor_loads_the_configuration_it_is_given(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    (home.config.parent / "policies" / "default.yaml").write_text("version: 2\n", encoding="utf-8")
    looked = airlock("doctor", "--config", str(home.config), "--json", check=False)
    assert looked.returncode == 1
    findings = {one["what"]: one for one in json.loads(looked.stdout)["findings"]}
    assert findings["configuration"]["state"] == "failed"
    assert "default.yaml" in findings["configuration"]["fix"]


def test_doctor_looks_at_where_files_are_kept(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    looked = airlock("doctor", "--config", str(home.config), "--json", check=False)
    findings = {one["what"]: one for one in json.loads(looked.stdout)["findings"]}
    assert (findings["reserve"]["state"], findings["snapshots"]["state"]) == ("ok", "ok")
    written = home.config.read_text(encoding="utf-8")
    written += "snapshots_dir: /proc/snapshots\n"
    assert "\nsandbox:" in written
    home.config.write_text(
        written.replace("\nsandbox:", "\nsandbox:\n  disk_reserve_mib: 100000000", 1), encoding="utf-8"
    )
    looked = airlock("doctor", "--config", str(home.config), "--json", check=False)
    findings = {one["what"]: one for one in json.loads(looked.stdout)["findings"]}
    assert (findings["reserve"]["state"], findings["snapshots"]["state"]) == ("failed", "failed")
    assert "snapshots_dir" in findings["snapshots"]["fix"]


def test_doctor_tries_each_runtime_that_a_policy_asks_for(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    policy = "version: 1\ndescription: x\nsandbox: {image: airlock-sandbox, runtime: runsc}\n"
    (home.config.parent / "policies" / "default.yaml").write_text(policy, encoding="utf-8")
    looked = airlock("doctor", "--config", str(home.config), "--json", check=False)
    findings = {one["what"]: one for one in json.loads(looked.stdout)["findings"]}
    if findings["runtime runsc"]["state"] != "ok":
        assert findings["tenant default"]["state"] == "failed"
        assert "docs/deployment.md" in findings["tenant default"]["fix"]
        return
    for what in ("tenant default", "sandbox", "sandbox runsc"):
        assert findings[what]["state"] == "ok", findings[what]
    assert "limits runsc" in findings


def test_doctor_tries_what_enforcement_by_the_kernel_needs(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    policy = (
        "version: 1\nenforcement: kernel\nrules:\n"
        "  - {id: run, tools: [execute], argv: [[[git, no-such-program]]], effect: allow, reason: r}\n"
    )
    for text, state in ((policy, "warning"), (policy.replace(", no-such-program", ""), "ok")):
        (home.config.parent / "policies" / "default.yaml").write_text(text, encoding="utf-8")
        looked = airlock("doctor", "--config", str(home.config), "--json", check=False)
        findings = {one["what"]: one for one in json.loads(looked.stdout)["findings"]}
        assert findings["enforcement default"]["state"] == state, findings
        assert ("no-such-program" in findings["enforcement default"]["detail"]) is (state == "warning")
