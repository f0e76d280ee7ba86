import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from airlock import Client
from airlock.errors import ClientClosed, Unavailable
from gateway.integrations.deepagents import AirlockBackend


@pytest.fixture
def backend(address: str, api_key: str, thread: str) -> Iterator[AirlockBackend]:
    with AirlockBackend(thread, address=address, api_key=api_key) as one:
        yield one


@pytest.fixture
def strict(address: str, strict_key: str, thread: str) -> Iterator[AirlockBackend]:
    with AirlockBackend(thread, address=address, api_key=strict_key) as one:
        yield one


def test_an_agent_of_the_page_computes_in_the_sandbox(run_program: Callable[[str], str]) -> None:
    assert run_program("deepagents") == "The sum is 5050.\n"


def test_a_denied_command_has_not_run_and_names_its_rule(strict: AirlockBackend) -> None:
    denied = strict.execute("curl https://example.com; touch /workspace/ran")
    assert "rule no-curl: agents do not download" in denied.output
    assert denied.exit_code == 126
    assert strict.ls("/workspace").entries == []


def test_each_denied_file_operation_names_its_rule(strict: AirlockBackend) -> None:
    path = "/workspace/secrets/key.txt"
    errors = [
        strict.read(path).error,
        strict.write(path, "x").error,
        strict.edit(path, "a", "b").error,
        strict.delete(path).error,
        strict.ls("/workspace/secrets").error,
        strict.grep("a", "/workspace/secrets").error,
        strict.glob("*", "/workspace/secrets").error,
        strict.upload_files([(path, b"x")])[0].error,
        strict.download_files([path])[0].error,
    ]
    assert [error for error in errors if error is None or "no-secrets" not in error] == []


async def test_a_command_that_needs_an_approval_names_it_and_runs_once_it_is_approved(
    strict: AirlockBackend, address: str, approver_key: str
) -> None:
    command = "python3 -c 'print(6 * 7)'"
    waiting = await strict.aexecute(command)
    assert waiting.exit_code == 126
    assert "ask-python" in waiting.output
    approval_id = next(word for word in waiting.output.split() if word.startswith("apr_"))
    async with Client(address, approver_key) as approver:
        await approver.resolve_approval(approval_id, "once")
    assert await strict.aexecute(command) == type(waiting)(output="42\n", exit_code=0)


def test_a_result_that_a_rule_withholds_is_not_shown(strict: AirlockBackend) -> None:
    withheld = strict.execute("echo CARD-1234")
    assert "no-cards" in withheld.output
    assert "CARD-1234" not in withheld.output


def test_secrets_are_redacted_in_output_in_pages_and_in_large_output(backend: AirlockBackend) -> None:
    token = "ghp_" + "a1B2" * 9
    backend.upload_files([("/workspace/token.txt", token.encode())])
    page = backend.read("/workspace/token.txt").file_data
    large = backend.execute("cat token.txt; yes | head -c 200000; cat token.txt")
    assert not large.truncated
    for shown in (backend.execute("cat token.txt").output, (page or {})["content"], large.output):
        assert "redacted" in shown
        assert token not in shown


def test_a_command_says_how_it_ended(backend: AirlockBackend) -> None:
    failed = backend.execute("echo out; echo err >&2; exit 3")
    assert (sorted(failed.output.split()), failed.exit_code) == (["err", "out"], 3)
    late = backend.execute("echo began; sleep 60", timeout=1)
    assert (late.output.splitlines()[0], late.exit_code) == ("began", 124)
    assert "timed out after 1 s" in late.output


def test_a_command_that_is_given_more_time_than_the_policy_allows_says_so(backend: AirlockBackend) -> None:
    refused = backend.execute("true", timeout=100_000)
    assert refused.exit_code != 0
    assert "timeout_s" in refused.output


def test_output_beyond_a_mebibyte_is_in_a_file_and_marked_as_cut(backend: AirlockBackend) -> None:
    result = backend.execute("yes 0123456789 | head -c 3000000; echo end")
    assert (result.exit_code, result.truncated) == (0, True)
    path = result.output.rpartition(" ")[2].rstrip("]")
    assert backend.download_files([path])[0].content == b"0123456789\n" * 272_727 + b"012" + b"end\n"


async def test_a_cancelled_command_ends_in_the_sandbox(backend: AirlockBackend) -> None:
    running = asyncio.create_task(backend.aexecute("touch /workspace/began; sleep 30; touch /workspace/survived"))
    while not (await backend.als("/workspace")).entries:
        await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    deadline_s = time.monotonic() + 20
    while (await backend.aexecute("pgrep sleep")).exit_code == 0:
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.1)


def test_threads_and_event_loops_share_a_backend(backend: AirlockBackend) -> None:
    assert asyncio.run(backend.aexecute("echo 1")).output == "1\n"
    assert asyncio.run(backend.aexecute("echo 2")).output == "2\n"
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda number=number: found.append(backend.execute(f"echo {number}").output))
        for number in range(4)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(found) == ["0\n", "1\n", "2\n", "3\n"]


def test_an_edit_keeps_the_line_ends_of_the_file(backend: AirlockBackend) -> None:
    backend.upload_files([("/workspace/dos.txt", b"one\r\ntwo\r\n")])
    read = backend.read("/workspace/dos.txt")
    assert read.file_data is not None
    assert read.file_data["content"] == "one\ntwo"
    assert backend.edit("/workspace/dos.txt", "one\ntwo", "1\n2").occurrences == 1
    assert backend.download_files(["/workspace/dos.txt"])[0].content == b"1\r\n2\r\n"


def test_a_long_line_is_cut_and_the_next_page_goes_on_after_it(backend: AirlockBackend) -> None:
    backend.write("/workspace/long.txt", "first\n" + "x" * 100_000 + "\nlast\n")
    page = backend.read("/workspace/long.txt")
    assert page.file_data is not None
    assert page.file_data["content"].endswith("[line 2 is longer than 64 KiB and cut here]")
    assert page.next_offset == 2
    following = backend.read("/workspace/long.txt", offset=page.next_offset)
    assert (following.file_data or {})["content"] == "last"


def test_pages_say_where_they_are_in_the_file(backend: AirlockBackend) -> None:
    backend.write("/workspace/ten.txt", "".join(f"{number}\n" for number in range(1, 11)))
    first = backend.read("/workspace/ten.txt", limit=4)
    assert (first.start_line, first.end_line, first.next_offset, first.total_lines) == (1, 4, 4, None)
    last = backend.read("/workspace/ten.txt", offset=8)
    assert (last.start_line, last.end_line, last.next_offset, last.total_lines) == (9, 10, None, 10)
    assert backend.read("/workspace/ten.txt", offset=10).error == "line 11 is past the end of /workspace/ten.txt"


def test_glob_finds_what_deepagents_means_by_a_pattern(backend: AirlockBackend) -> None:
    backend.execute("mkdir -p src/app .github && touch top.py src/app/main.py src/app/a.ts .github/ci.yml .env")

    def found(pattern: str) -> list[str]:
        return [one["path"].removeprefix("/workspace/") for one in backend.glob(pattern, "/workspace").matches or []]

    assert found("*.py") == ["src/app/main.py", "top.py"]
    assert found("/*.py") == ["top.py"]
    assert found("src/**/*.{py,ts}") == ["src/app/a.ts", "src/app/main.py"]
    assert found("*.yml") == [".github/ci.yml"]
    assert found("**/*.yml") == []
    assert backend.glob("../*", "/workspace").error is not None


def test_grep_finds_a_text_in_pages_and_stops_at_the_count_that_is_asked_for(backend: AirlockBackend) -> None:
    backend.write("/workspace/many.txt", "a (literal) line\n" * 3000)
    backend.write("/workspace/other.md", "a (literal) line\n")
    everything = backend.grep("(literal)", "/workspace")
    assert (len(everything.matches or []), everything.truncated) == (3001, False)
    assert len(backend.grep("(literal)", "/workspace", "*.md").matches or []) == 1
    some = backend.grep("(literal)", "/workspace", max_count=5)
    assert (len(some.matches or []), some.truncated) == (5, True)


def test_a_file_of_100_mib_is_uploaded_and_downloaded(backend: AirlockBackend) -> None:
    data = bytes(range(256)) * 4096 * 100
    assert backend.upload_files([("/workspace/large.bin", data)])[0].error is None
    assert backend.download_files(["/workspace/large.bin"])[0].content == data


def test_a_file_where_a_directory_should_be_is_an_invalid_path(backend: AirlockBackend) -> None:
    backend.write("/workspace/file", "x")
    codes = [one.error for one in backend.upload_files([("/workspace/file/below", b""), ("/workspace", b"")])]
    assert codes == ["invalid_path", "is_directory"]


def test_a_gateway_that_does_not_answer_is_an_error_and_no_output(api_key: str) -> None:
    backend = AirlockBackend("t1", address="127.0.0.1:9", api_key=api_key)
    with pytest.raises(Unavailable):
        backend.execute("true")
    with pytest.raises(Unavailable):
        backend.read("/workspace/a.txt")


async def test_a_closed_backend_says_that_it_is_closed(address: str, api_key: str) -> None:
    backend = AirlockBackend("t1", address=address, api_key=api_key)
    backend.close()
    backend.close()
    for _ in range(2):
        with pytest.raises(ClientClosed):
            backend.execute("true")
        with pytest.raises(ClientClosed):
            await backend.aexecute("true")


def test_closing_ends_a_command_that_another_thread_waits_for(backend: AirlockBackend) -> None:
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(BaseException):  # noqa: B017, PT011 - ClientClosed, or that it was cancelled
            backend.execute("touch /workspace/began; sleep 60")
        ended.set()

    threading.Thread(target=wait).start()
    while not backend.ls("/workspace").entries:
        time.sleep(0.05)
    backend.close()
    assert ended.wait(30)


def test_without_a_key_it_says_how_to_make_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRLOCK_API_KEY")
    with pytest.raises(ValueError, match="airlock key create"):
        AirlockBackend("t1")
