"""Files by E2B's SDK."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from io import BytesIO

import httpx2 as httpx
import pytest
from e2b import AsyncSandbox, FileType, Sandbox, SandboxException
from e2b.exceptions import InvalidArgumentException, NotFoundException, TemplateException
from e2b.sandbox.filesystem.watch_handle import FilesystemEventType

from tests.integration.e2b.conftest import Connection
from tests.integration.http.conftest import Listening
from tests.waiting import eventually


def test_files_are_written_read_listed_renamed_and_removed(sandbox: Sandbox) -> None:
    files = sandbox.files
    info = files.write("files/a/b.txt", "text")
    assert (info.path, info.name) == ("/home/user/files/a/b.txt", "b.txt")
    for path in ("files/a/b.txt", "/home/user/files/a/b.txt", "/workspace/files/a/b.txt", "~/files/a/b.txt"):
        assert files.read(path) == "text"
    assert sandbox.commands.run("cat /workspace/files/a/b.txt").stdout == "text"
    found = files.get_info("/workspace/files/a/b.txt")
    assert (found.type, found.size, found.permissions, found.owner) == (FileType.FILE, 4, "-rw-r--r--", "user")
    assert found.path == "/workspace/files/a/b.txt"
    assert files.rename("files/a/b.txt", "files/c/d.txt").path == "/home/user/files/c/d.txt"
    assert not files.exists("files/a/b.txt")
    assert files.make_dir("files/e")
    assert not files.make_dir("files/e")
    listed = files.list("files", depth=2)
    assert [one.path.removeprefix("/home/user/files/") for one in listed] == ["a", "c", "c/d.txt", "e"]
    files.remove("files/c")
    files.remove("files/c")
    assert [one.name for one in files.list("files")] == ["a", "e"]


def test_several_files_are_uploaded_at_once_in_both_forms(sandbox: Sandbox) -> None:
    large = bytes(range(256)) * 20_000
    written = sandbox.files.write_files([{"path": "up/1", "data": "one"}, {"path": "up/2", "data": BytesIO(large)}])
    assert [one.path for one in written] == ["/home/user/up/1", "/home/user/up/2"]
    form = [{"path": "up/3", "data": large}, {"path": "up/4", "data": b""}]
    sandbox.files.write_files(form, use_octet_stream=False)
    sandbox.files.write("up/5", large, gzip=True)
    for name in ("2", "3", "5"):
        assert bytes(sandbox.files.read(f"up/{name}", "bytes")) == large
    assert b"".join(sandbox.files.read("up/3", "stream")) == large
    assert sandbox.files.read("up/4") == ""


def test_a_file_that_is_not_there_or_is_a_directory_is_an_error_of_e2b(sandbox: Sandbox) -> None:
    with pytest.raises(NotFoundException):
        sandbox.files.read("files/none")
    with pytest.raises(NotFoundException):
        sandbox.files.list("files/none")
    sandbox.files.make_dir("files/dir")
    with pytest.raises(InvalidArgumentException, match="is a directory"):
        sandbox.files.read("files/dir")
    with pytest.raises(SandboxException, match="default-deny"):
        sandbox.files.read("/etc/passwd")
    with pytest.raises(TemplateException):
        sandbox.files.write("files/x", "x", metadata={"a": "b"})


def test_a_watcher_reports_what_happened_since_it_was_asked(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("watched/below")
    watcher = sandbox.files.watch_dir("watched", recursive=True)
    sandbox.files.write("watched/below/new.txt", "1")
    sandbox.commands.run("cd watched && mv below/new.txt moved.txt && chmod 600 moved.txt && rm moved.txt")
    seen = [(one.type.value, one.name) for one in watcher.get_new_events()]
    expected = [("create", "below/new.txt"), ("write", "below/new.txt"), ("rename", "below/new.txt")]
    expected += [("create", "moved.txt"), ("write", "moved.txt"), ("chmod", "moved.txt"), ("remove", "moved.txt")]
    assert seen == expected
    assert watcher.get_new_events() == []
    sandbox.files.write("watched/replaced", "1")
    watcher.get_new_events()
    sandbox.files.write("watched/replaced", "2")
    assert [one.type for one in watcher.get_new_events()] == [FilesystemEventType.WRITE]
    watcher.stop()
    with pytest.raises(NotFoundException):
        sandbox.files.watch_dir("watched/none")


async def test_the_asynchronous_client_gets_events_as_they_happen(sandbox: Sandbox, connection: Connection) -> None:
    other = await AsyncSandbox.connect(sandbox.sandbox_id, **connection)
    await other.files.make_dir("streamed")
    seen: asyncio.Queue[str] = asyncio.Queue()
    watcher = await other.files.watch_dir("streamed", on_event=lambda event: seen.put_nowait(event.name))
    await other.files.write("streamed/file", "1")
    async with asyncio.timeout(30):
        assert await seen.get() == "file"
    await watcher.stop()
    assert eventually(lambda: not [one for one in sandbox.commands.list() if one.cmd == "python3"], 30)


def test_a_signed_url_reads_and_writes_one_file_for_its_time(sandbox: Sandbox, gateway: Listening) -> None:
    sandbox.files.write("signed.txt", "text")
    host = f"49983-{sandbox.sandbox_id}.localhost:{gateway.http.rpartition(':')[2]}"

    def at_its_host(url: str) -> str:
        return f"{gateway.url}/files?{url.partition('?')[2]}"

    headers = {"host": host}
    url = at_its_host(sandbox.download_url("signed.txt", use_signature_expiration=60))
    assert httpx.get(url, headers=headers).text == "text"
    answer = httpx.get(url.replace("signed.txt", "other.txt"), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (401, 401)
    assert httpx.post(url, headers=headers, files={"file": ("signed.txt", b"new")}).status_code == 401
    late = at_its_host(sandbox.download_url("signed.txt", use_signature_expiration=int(1 - time.time() % 1)))
    assert eventually(lambda: "expired" in httpx.get(late, headers=headers).text, 30)
    upload = at_its_host(sandbox.upload_url("signed.txt"))
    assert httpx.post(upload, headers=headers, files={"file": ("signed.txt", b"new")}).status_code == 200
    assert sandbox.files.read("signed.txt") == "new"


def test_what_tool_code_writes_in_place_of_a_watcher_is_bounded(make_sandbox: Callable[..., Sandbox]) -> None:
    sandbox = make_sandbox()
    sandbox.files.write("ctypes.py", "raise SystemExit('not a module of the watcher')")
    sandbox.files.make_dir("flooded")
    watcher = sandbox.files.watch_dir("flooded")
    assert watcher.get_new_events() == []
    # Its output never ends, and has no line.
    sandbox.commands.run("cat /dev/zero > /proc/$(pgrep -x python3)/fd/1", background=True)

    def lost() -> bool:
        try:
            watcher.get_new_events(request_timeout=90)
        except SandboxException as error:
            return "does not answer" in str(error)
        return False

    assert eventually(lost, 60)
