"""Which policy `airlock doctor --config` judges by: the one in force, wherever it came from."""

from __future__ import annotations

from pathlib import Path

from gateway.cli.doctor_config import is_migrated, policies_in_force
from gateway.cli.finding import Finding
from gateway.config.config import Config
from gateway.storage.database import Database
from gateway.storage.policy_store import PolicyStore
from gateway.tenancy.tenants import load_tenants

POLICY = "version: 1\ndescription: {}\nsandbox: {{image: {}}}\n"


def _config(directory: Path, url: str) -> tuple[Config, Path]:
    policy = directory / "t.yaml"
    policy.write_text(POLICY.format("of the file", "filed"), encoding="utf-8")
    path = directory / "airlock.yaml"
    path.write_text(f"database_url: {url}\ntenants: {{t: {{policy: t.yaml}}}}\n", encoding="utf-8")
    return Config.load(path), policy


async def _images(config: Config) -> list[str]:
    found, _ = await policies_in_force(config, load_tenants(config), migrated=is_migrated(config))
    return [tenant.sandbox_spec("t").image for tenant in found.values()]


async def _drift(config: Config) -> list[Finding]:
    return (await policies_in_force(config, load_tenants(config), migrated=is_migrated(config)))[1]


async def test_what_was_applied_counts_until_a_file_is_edited(tmp_path: Path, empty_url: str) -> None:
    config, file = _config(tmp_path, empty_url)
    assert await _images(config) == ["filed"]  # no tables are there yet
    database = await Database.open(empty_url)
    try:
        assert await _images(config) == ["filed"]  # no gateway has looked yet
        store = PolicyStore(database)
        await store.apply("t", file.read_text(encoding="utf-8"), "file", "file t.yaml")
        assert await _drift(config) == []
        await store.apply("t", POLICY.format("applied", "applied"), "apply", "operator")
        assert await _images(config) == ["applied"]
        (drift,) = await _drift(config)
        assert (drift.what, drift.state) == ("policy of t", "warning")
        assert f"{file} has no effect" in drift.detail
        assert f"airlock policy apply {file} --tenant t" in drift.fix
        file.write_text(POLICY.format("edited", "edited"), encoding="utf-8")
        assert await _images(config) == ["edited"]
        assert await _drift(config) == []  # the next start takes it
    finally:
        await database.close()


async def test_a_tenant_without_a_file_is_judged_by_what_was_applied(tmp_path: Path, database_url: str) -> None:
    path = tmp_path / "airlock.yaml"
    path.write_text(f"database_url: {database_url}\ntenants: {{t: {{policy: managed}}}}\n", encoding="utf-8")
    config = Config.load(path)
    database = await Database.open(database_url)
    try:
        assert await _images(config) == []
        (none,) = await _drift(config)
        assert (none.detail, "policy apply FILE --tenant t" in none.fix) == (
            "managed by `airlock policy apply`, but never applied",
            True,
        )
        await PolicyStore(database).apply("t", POLICY.format("applied", "applied"), "apply", "operator")
        assert await _images(config) == ["applied"]
        assert await _drift(config) == []
    finally:
        await database.close()


async def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    config, _ = _config(tmp_path, f"sqlite:///{tmp_path}/none.db")
    assert await _images(config) == ["filed"]
    assert not (tmp_path / "none.db").exists()
