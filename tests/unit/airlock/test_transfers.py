"""Downloads from a sandbox that lies: nothing is written outside the directory, and nothing that a mode would allow."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from airlock import Client, InvalidArgument, InvalidPath, TooLarge
from airlock.v1 import workspace_service_pb2 as pb
from gateway.v1 import workspace_service_pb2_grpc as grpc_pb

DIRECTORY = pb.FILE_KIND_DIRECTORY


class Lying(grpc_pb.WorkspaceServiceServicer):
    """A gateway whose sandbox names its files as it likes: `entries` by directory."""

    def __init__(self) -> None:
        self.entries: dict[str, list[pb.FileEntry]] = {}
        self.kind = DIRECTORY
        self.written: dict[str, bytes] = {}

    async def StatFile(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.StatFileResponse(file=pb.FileEntry(name="x", kind=self.kind, mode=0o6777))

    async def ListFiles(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.path.startswith("/deep"):
            return pb.ListFilesResponse(files=[pb.FileEntry(name="d", kind=DIRECTORY)])
        return pb.ListFilesResponse(files=self.entries.get(request.path, []))

    async def ReadFile(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        yield pb.ReadFileResponse(data=b"evil" * 256)

    async def WriteFile(self, requests: Any, context: Any) -> Any:  # noqa: N802
        path, data = "", b""
        async for request in requests:
            path, data = request.path or path, data + request.data
        self.written[path] = data
        return pb.WriteFileResponse(size_bytes=len(data))

    async def MakeDirectory(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.MakeDirectoryResponse()


@pytest.fixture
async def lying() -> AsyncIterator[tuple[Lying, Client]]:
    servicer, server = Lying(), grpc.aio.server()
    grpc_pb.add_WorkspaceServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with Client(f"127.0.0.1:{port}", "alk_x") as client:
        yield servicer, client
    await server.stop(None)


def tree(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


@pytest.mark.parametrize("name", ["../evil", "..", "/etc/evil", "a/../../evil", "", ".", "a//b", "a\0b"])
@pytest.mark.parametrize("kind", [pb.FILE_KIND_FILE, DIRECTORY])
async def test_a_name_that_leads_elsewhere_is_refused(
    lying: tuple[Lying, Client], tmp_path: Path, name: str, kind: Any
) -> None:
    servicer, client = lying
    servicer.entries["/out"] = [pb.FileEntry(name=name, kind=kind)]
    with pytest.raises(InvalidPath):
        await client.download("t", "/out", tmp_path / "home" / "target")
    assert tree(tmp_path) <= {"home", "home/target", "home/target/a"}


@pytest.mark.parametrize("name", ["link/evil", "link"])
async def test_a_link_that_is_there_is_not_followed(lying: tuple[Lying, Client], tmp_path: Path, name: str) -> None:
    servicer, client = lying
    elsewhere, target = tmp_path / "elsewhere", tmp_path / "target"
    elsewhere.mkdir()
    target.mkdir()
    (elsewhere / "file").write_bytes(b"mine")
    (target / "link").symlink_to(elsewhere if "/" in name else elsewhere / "file")
    servicer.entries["/out"] = [pb.FileEntry(name=name, kind=pb.FILE_KIND_FILE)]
    if "/" in name:
        with pytest.raises(InvalidPath, match="symbolic link"):
            await client.download("t", "/out", target)
    else:
        await client.download("t", "/out", target)
        assert not (target / "link").is_symlink()
    assert tree(elsewhere) == {"file"}
    assert (elsewhere / "file").read_bytes() == b"mine"
    assert not list(target.glob(".airlock-*"))


@pytest.mark.parametrize("kind", [pb.FILE_KIND_FILE, DIRECTORY])
async def test_of_a_mode_only_the_execute_bits_are_kept(lying: tuple[Lying, Client], tmp_path: Path, kind: Any) -> None:
    servicer, client = lying
    servicer.kind = kind
    servicer.entries["/out"] = [
        pb.FileEntry(name="out", kind=pb.FILE_KIND_FILE, mode=0o6777),
        pb.FileEntry(name="plain", kind=pb.FILE_KIND_FILE, mode=0o4644),
        pb.FileEntry(name="link", kind=pb.FILE_KIND_SYMLINK),
        pb.FileEntry(name="pipe", kind=pb.FILE_KIND_OTHER),
        pb.FileEntry(name="empty", kind=DIRECTORY),
    ]
    umask = os.umask(0o022)
    try:
        target = tmp_path / "out"
        done = await client.download("t", "/out", target)
    finally:
        os.umask(umask)
    file = target if kind == pb.FILE_KIND_FILE else target / "out"
    assert stat.S_IMODE(file.stat().st_mode) == 0o755
    if kind == DIRECTORY:
        assert stat.S_IMODE((target / "plain").stat().st_mode) == 0o644
        assert (done.files, done.size_bytes, done.skipped) == (2, 2048, 2)
        assert tree(target) == {"out", "plain", "empty"}


async def test_what_is_too_large_or_too_deep_ends_and_leaves_no_part(
    lying: tuple[Lying, Client], tmp_path: Path
) -> None:
    servicer, client = lying
    servicer.entries["/out"] = [pb.FileEntry(name=f"f{n}", kind=pb.FILE_KIND_FILE) for n in range(50)]
    with pytest.raises(TooLarge, match="limit_bytes"):
        await client.download("t", "/out", tmp_path / "a", limit_bytes=10_000)
    assert sum(path.stat().st_size for path in (tmp_path / "a").iterdir()) <= 10_000
    assert not list((tmp_path / "a").glob(".airlock-*"))
    with pytest.raises(TooLarge, match="nested"):
        await client.download("t", "/deep", tmp_path / "b")


async def test_a_directory_in_the_way_of_a_file_and_a_special_file_are_clear_errors(
    lying: tuple[Lying, Client], tmp_path: Path
) -> None:
    servicer, client = lying
    servicer.kind = pb.FILE_KIND_FILE
    with pytest.raises(IsADirectoryError):
        await client.download("t", "/out", tmp_path)
    servicer.kind = pb.FILE_KIND_SYMLINK
    with pytest.raises(InvalidPath, match="neither"):
        await client.download("t", "/out", tmp_path / "x")


async def test_an_upload_follows_no_link_and_waits_for_no_pipe(lying: tuple[Lying, Client], tmp_path: Path) -> None:
    servicer, client = lying
    source = tmp_path / "project"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "a").write_bytes(b"a" * 1_000_000)
    (source / "deep" / "er" / "b").write_bytes(b"b")
    (tmp_path / "secret").write_bytes(b"secret")
    (source / "link").symlink_to(tmp_path / "secret")
    (source / "up").symlink_to(tmp_path)
    os.mkfifo(source / "pipe")
    done = await client.upload("t", source)
    assert (done.files, done.size_bytes, done.skipped) == (2, 1_000_001, 3)
    assert set(servicer.written) == {"/workspace/project/a", "/workspace/project/deep/er/b"}
    assert (await client.upload("t", str(source / "a"), "x")).files == 1
    assert len(servicer.written["x"]) == 1_000_000
    with pytest.raises(FileNotFoundError):
        await client.upload("t", tmp_path / "missing")
    with pytest.raises(InvalidArgument):
        await client.upload("t", source / "pipe")
