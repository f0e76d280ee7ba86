"""Whether two ends are of one build is decided by one digest, taken by the bundle and by the gateway alike."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import pytest

from sandbox.daemon.build import read_build
from sandbox.engines import build
from sandbox.engines.build import BUILD_FILE, own_build, sources_digest

REPOSITORY = Path(__file__).parents[4]
PACKAGE = REPOSITORY / "sandbox"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of what the digest is taken of."""
    copy = tmp_path / "sandbox"
    for name in ("daemon", "tls", "v1"):
        shutil.copytree(PACKAGE / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PACKAGE / "__init__.py", copy)
    shutil.copy(PACKAGE / "engines" / "build.py", copy)
    return copy


def test_the_gateway_and_the_bundle_of_the_same_sources_say_the_same(package: Path) -> None:
    # The bundle's script loads the module by its path, from a directory of another name.
    in_the_bundle = runpy.run_path(str(package / "build.py"))["sources_digest"](package)
    assert in_the_bundle == sources_digest(package) == sources_digest(package)
    assert len(own_build()) == 64
    assert set(own_build()) <= set("0123456789abcdef")


def test_every_source_counts(package: Path) -> None:
    seen = {sources_digest(package)}
    sources = [
        package / "__init__.py",
        *(file for name in ("daemon", "tls", "v1") for file in (package / name).rglob("*.py")),
    ]
    assert len(sources) > 20
    for source in sources:
        before = source.read_bytes()
        source.write_bytes(before + b"\n")
        seen.add(sources_digest(package))
        source.write_bytes(before)
    assert len(seen) == len(sources) + 1


def test_a_source_that_is_renamed_added_or_gone_counts(package: Path) -> None:
    seen = {sources_digest(package)}
    (package / "daemon" / "files" / "search.py").rename(package / "daemon" / "files" / "searches.py")
    seen.add(sources_digest(package))
    (package / "daemon" / "files" / "searches.py").unlink()
    seen.add(sources_digest(package))
    (package / "daemon" / "empty.py").write_bytes(b"")
    seen.add(sources_digest(package))
    assert len(seen) == 4


def test_bytes_that_move_from_one_source_to_the_next_count(package: Path) -> None:
    first, second = sorted((package / "daemon").rglob("*.py"))[:2]
    before = sources_digest(package)
    joined = first.read_bytes() + second.read_bytes()
    first.write_bytes(joined[:1])
    second.write_bytes(joined[1:])
    assert sources_digest(package) != before


def test_what_is_not_a_source_of_the_daemon_does_not_count(package: Path) -> None:
    before = sources_digest(package)
    (package / "docker_engine.py").write_text("gateway = True")
    (package / "daemon" / "server.pyc").write_bytes(b"compiled")
    (package / "v1" / "channel_pb2.pyi").write_text("types: int")
    assert sources_digest(package) == before


def test_another_format_of_the_bundle_counts(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sources_digest(package)
    monkeypatch.setattr(build, "BUNDLE_FORMAT", build.BUNDLE_FORMAT + 1)
    assert sources_digest(package) != before


def test_missing_sources_are_an_error_and_not_a_digest_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").touch()
    with pytest.raises(FileNotFoundError, match=r"daemon.*install airlock anew"):
        sources_digest(tmp_path)


def test_the_daemon_reads_what_the_bundle_wrote(tmp_path: Path) -> None:
    (tmp_path / BUILD_FILE).write_text(own_build() + "\n")
    assert read_build(str(tmp_path)) == own_build()


def test_a_daemon_that_does_not_run_from_a_bundle_says_nothing(tmp_path: Path) -> None:
    assert not read_build(str(tmp_path))


def test_of_a_file_that_is_no_digest_only_a_bounded_part_is_said(tmp_path: Path) -> None:
    (tmp_path / BUILD_FILE).write_bytes(b"\xff" + b"x" * 1_000_000)
    assert read_build(str(tmp_path)) == "�" + "x" * 63
