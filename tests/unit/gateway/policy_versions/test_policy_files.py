"""Policy files: an edit comes into force, a bad one never does, and what was applied since is not taken back."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from structlog.testing import capture_logs

from gateway.composition.foundation import policies_in_force
from gateway.config.config import Config
from gateway.errors import Misconfigured
from gateway.policy_versions.policies import Policies
from gateway.policy_versions.policy_files import PolicyFiles
from gateway.storage.database import Database
from gateway.storage.policy_store import PolicyStore
from gateway.telemetry.telemetry import Telemetry
from gateway.tenancy.tenants import Tenants

BAD = "version: 1\nrules:\n- {id: a, tools: [execute], effect: maybe, reason: r}\n- {id: b}\n"


def _text(name: str, *, effect: str = "allow", limits: str = "{}") -> str:
    return f"version: 1\nlimits: {limits}\nrules:\n- {{id: {name}, tools: [execute], effect: {effect}, reason: r}}\n"


def _config(directory: Path, *, tenants: int = 1, operator: bool = False) -> Config:
    named = {f"t{n}": {"policy": "t.yaml"} for n in range(tenants)}
    document = {"tenants": named, **({"operator_policy": "o.yaml"} if operator else {})}
    (directory / "airlock.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return Config.load(directory / "airlock.yaml")


@contextlib.asynccontextmanager
async def _gateway(directory: Path, config: Config) -> AsyncIterator[Policies]:
    """What a gateway has of policies, watching."""
    database = await Database.open(f"sqlite:///{directory}/airlock.db")
    try:
        async with policies_in_force(config, database, Telemetry.off()) as policies:
            yield policies
    finally:
        await database.close()


async def _rule(policies: Policies, tenant: str = "t0") -> str:
    return (await policies.in_force(tenant)).policy.judge("execute", {"command": "true"}).rule


async def _until(policies: Policies, rule: str, tenant: str = "t0") -> None:
    async with asyncio.timeout(30):
        while await _rule(policies, tenant) != rule:
            await asyncio.sleep(0.02)


async def _said(capsys: pytest.CaptureFixture[str], what: str) -> str:
    said = ""
    async with asyncio.timeout(30):
        while what not in said:
            await asyncio.sleep(0.02)
            read = capsys.readouterr()
            said += read.out + read.err
    return said


async def test_an_edit_comes_into_force_and_a_bad_one_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(_text("first"), encoding="utf-8")
    async with _gateway(tmp_path, _config(tmp_path)) as policies:
        assert await _rule(policies) == "first"
        file.write_text(BAD, encoding="utf-8")
        said = await _said(capsys, "refused")
        assert "rules[0].effect" in said  # every problem, not the first
        assert "rules[1]" in said
        assert await _rule(policies) == "first"
        file.write_text(_text("second"), encoding="utf-8")
        await _until(policies, "second")
        file.unlink()
        await _said(capsys, "refused")
        assert await _rule(policies) == "second"
    # The bad file and the missing one left no trace; the database brings the last good one back.
    file.write_text(BAD, encoding="utf-8")
    async with _gateway(tmp_path, _config(tmp_path)) as policies:
        assert await _rule(policies) == "second"
        history = await policies.store.history("t0", 10)
        assert [(change.kind, change.by) for change in history] == [("file", f"file {file}")] * 2


async def test_a_mounted_config_map_is_followed_to_its_next_version(tmp_path: Path) -> None:
    """The kubelet makes each version a directory, points a link at it, and removes the one before."""
    mount = tmp_path / "mount"

    def publish(version: str) -> None:
        (mount / version).mkdir(parents=True)
        _config(mount / version)
        (mount / version / "t.yaml").write_text(_text(version), encoding="utf-8")
        (mount / "next").symlink_to(version)
        (mount / "next").rename(mount / "..data")

    publish("first")
    for name in ("airlock.yaml", "t.yaml"):
        (mount / name).symlink_to(f"..data/{name}")
    async with _gateway(tmp_path, Config.load(mount / "airlock.yaml")) as policies:
        assert await _rule(policies) == "first"
        publish("second")
        shutil.rmtree(mount / "first")
        await _until(policies, "second")


async def test_a_first_start_with_a_bad_file_is_refused_with_every_problem(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(BAD, encoding="utf-8")
    with pytest.raises(Misconfigured, match=r"(?s)policy of tenant t0 does not load:.*rules\[0\]\.effect.*rules\[1\]"):
        async with _gateway(tmp_path, _config(tmp_path)):
            pass


async def test_the_log_says_that_an_earlier_policy_holds_only_where_there_is_one(tmp_path: Path) -> None:
    config = _config(tmp_path)
    with capture_logs() as first, pytest.raises(Misconfigured):
        async with _gateway(tmp_path, config):
            pass
    (tmp_path / "t.yaml").write_text(_text("good"), encoding="utf-8")
    async with _gateway(tmp_path, config):
        pass
    (tmp_path / "t.yaml").unlink()
    with capture_logs() as later:
        async with _gateway(tmp_path, config):
            pass
    refused = [[one["event"] for one in lines if "refused" in one["event"]] for lines in (first, later)]
    assert refused == [
        ["a policy file is refused, and there is no earlier policy"],
        ["a policy file is refused; the last valid policy stays in force"],
    ]


async def test_what_was_applied_stays_over_a_restart_until_the_file_is_edited(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(_text("file"), encoding="utf-8")
    config = _config(tmp_path)
    async with _gateway(tmp_path, config) as policies:
        await policies.store.apply("t0", _text("applied"), "apply", "me")
        await _until(policies, "applied")
    async with _gateway(tmp_path, config) as policies:
        assert await _rule(policies) == "applied"
        file.write_text(_text("edited"), encoding="utf-8")
        await _until(policies, "edited")
        file.write_text(_text("file"), encoding="utf-8")
        await _until(policies, "file")
        assert [change.kind for change in await policies.store.history("t0", 9)] == ["file", "file", "apply", "file"]


async def test_an_edit_while_no_gateway_ran_takes_effect_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(_text("first"), encoding="utf-8")
    config = _config(tmp_path)
    async with _gateway(tmp_path, config):
        pass
    file.write_text(_text("second"), encoding="utf-8")
    async with _gateway(tmp_path, config) as policies:
        assert await _rule(policies) == "second"


async def test_the_operators_file_holds_for_every_tenant(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(_text("own"), encoding="utf-8")
    (tmp_path / "o.yaml").write_text(_text("never", effect="deny"), encoding="utf-8")
    async with _gateway(tmp_path, _config(tmp_path, tenants=2, operator=True)) as policies:
        for tenant in ("t0", "t1"):
            assert (await policies.in_force(tenant)).policy.judge("execute", {"command": "true"}).verdict == "deny"
        (tmp_path / "o.yaml").write_text("version: 1\n", encoding="utf-8")
        await _until(policies, "own")
        await _until(policies, "own", "t1")


async def test_layers_that_the_kernel_cannot_enforce_together_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pattern = "rules: [{id: env, tools: [read], paths: ['/**/.env'], effect: deny, reason: r}]\n"
    (tmp_path / "t.yaml").write_text(f"version: 1\n{pattern}", encoding="utf-8")
    (tmp_path / "o.yaml").write_text("version: 1\n", encoding="utf-8")
    async with _gateway(tmp_path, _config(tmp_path, operator=True)) as policies:
        (tmp_path / "o.yaml").write_text("version: 1\nenforcement: kernel\n", encoding="utf-8")
        refused = await _said(capsys, "refused")
        assert "the policies of tenant t0 and of the operator cannot hold together" in refused
        assert "rules[0].paths[0]: the kernel cannot enforce patterns" in refused
        assert "rule 'env'" in refused
        assert (await policies.in_force("t0")).policy.file_rules is None


async def test_a_policy_that_an_agent_cannot_be_made_with_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(_text("first"), encoding="utf-8")
    async with _gateway(tmp_path, _config(tmp_path)) as policies:
        # Money is limited, and what the model costs is not known.
        file.write_text(_text("second", limits="{cost_usd: 1.0}"), encoding="utf-8")
        assert "costs is not known" in await _said(capsys, "refused")
        assert await _rule(policies) == "first"


async def test_thousands_of_tenants_cost_nothing_before_they_call(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(_text("first"), encoding="utf-8")
    took: dict[int, float] = {}
    for tenants in (10, 1000):
        directory = tmp_path / str(tenants)
        directory.mkdir()
        (directory / "t.yaml").write_text(_text("first"), encoding="utf-8")
        config = _config(directory, tenants=tenants)
        for start in ("first", "second"):
            began = time.perf_counter()
            async with _gateway(directory, config) as policies:
                named = Tenants(config, policies)
                took[tenants] = time.perf_counter() - began
                assert policies.compiled == 0, start
                assert (await named.named(f"t{tenants - 1}")).policy.version
                assert policies.compiled == 1
    # A hundred times the tenants, on a second start: far from a hundred times as long.
    assert took[1000] < 10 * took[10] + 1.0


async def test_a_file_that_is_restored_to_what_it_was_is_reported_and_takes_nothing_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(_text("first"), encoding="utf-8")
    async with _gateway(tmp_path, _config(tmp_path)) as policies:
        version = (await policies.in_force("t0")).policy.version
        assert version in await _said(capsys, "policy in force")
        file.write_text(BAD, encoding="utf-8")
        said = await _said(capsys, "refused")
        assert "t0" in said
        assert "line 3: rules[0].effect" in said
        file.write_text(_text("first"), encoding="utf-8")
        assert version in await _said(capsys, "loads again, unchanged")
        assert await _rule(policies) == "first"


async def test_two_gateways_with_different_files_do_not_flip_the_policy_at_restarts(tmp_path: Path) -> None:
    configs = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "t.yaml").write_text(_text(name), encoding="utf-8")
        configs.append(_config(tmp_path / name))
    async with _gateway(tmp_path, configs[0]):
        pass
    async with _gateway(tmp_path, configs[1]):  # a text that was never in force, and so an edit
        pass
    for _ in range(2):
        for config in configs:
            async with _gateway(tmp_path, config) as policies:
                assert await _rule(policies) == "two"
                assert len(await policies.store.history("t0", 9)) == 2


async def test_a_file_that_is_first_seen_takes_nothing_from_what_was_applied(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(_text("file"), encoding="utf-8")
    database = await Database.open(f"sqlite:///{tmp_path}/airlock.db")
    await PolicyStore(database).apply("t0", _text("applied", effect="ask"), "apply", "me")
    await database.close()
    with capture_logs() as lines:
        async with _gateway(tmp_path, _config(tmp_path)) as policies:
            assert await _rule(policies) == "applied"
            file.write_text(_text("edited"), encoding="utf-8")
            await _until(policies, "edited")
    (told,) = [one for one in lines if "differs from what is in force" in one["event"]]
    assert (told["log_level"], told["tenant"], told["path"], told["by"]) == ("warning", "t0", str(file), "me")


async def test_drift_is_logged_once_and_counted_until_it_is_over(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(_text("file"), encoding="utf-8")
    database = await Database.open(f"sqlite:///{tmp_path}/airlock.db")
    policies = Policies(PolicyStore(database))
    files = PolicyFiles(_config(tmp_path), policies)
    try:
        await policies.open()
        await files.open()
        assert files.drifted == {}
        with capture_logs() as lines:
            async with policies.following(), files.watching(), asyncio.timeout(30):
                await policies.store.apply("t0", _text("applied"), "apply", "me")
                while files.drifted != {"t0": file}:
                    await asyncio.sleep(0.02)
                await policies.store.apply("t0", _text("file"), "rollback", "me")
                while files.drifted:
                    await asyncio.sleep(0.02)
        assert [one["by"] for one in lines if "differs from what is in force" in one["event"]] == ["me"]
    finally:
        files.close()
        policies.close()
        await database.close()


async def test_a_file_that_arrives_late_takes_nothing_from_a_newer_one(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(_text("first"), encoding="utf-8")
    async with _gateway(tmp_path, _config(tmp_path)) as policies:
        # Another gateway's copy of the file went through two edits before this one's has the first of them.
        for name in ("second", "third"):
            await policies.store.apply("t0", _text(name), "file", "file elsewhere", after=policies.newest)
        await _until(policies, "third")
        with capture_logs() as lines:
            file.write_text(_text("second"), encoding="utf-8")
            async with asyncio.timeout(30):
                while not any("differs from what is in force" in one["event"] for one in lines):
                    await asyncio.sleep(0.02)
        assert await _rule(policies) == "third"
        file.write_text(_text("fourth"), encoding="utf-8")
        await _until(policies, "fourth")


async def test_a_tenant_may_have_no_file(tmp_path: Path) -> None:
    (tmp_path / "airlock.yaml").write_text("tenants: {t0: {policy: managed}}\n", encoding="utf-8")
    config = Config.load(tmp_path / "airlock.yaml")
    async with _gateway(tmp_path, config) as policies:
        with pytest.raises(Misconfigured, match="airlock policy apply FILE --tenant t0"):
            await policies.in_force("t0")
        await policies.store.apply("t0", _text("applied"), "apply", "me")
        async with asyncio.timeout(30):
            while policies.change_in_force("t0") is None:
                await asyncio.sleep(0.02)
        assert await _rule(policies) == "applied"
