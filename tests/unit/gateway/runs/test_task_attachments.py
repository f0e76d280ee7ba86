"""Files that come with the task of a run: looked at before it starts, and shown with the task wherever it runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from sqlalchemy import select

from gateway.config.agent_settings import AgentSettings
from gateway.errors import ApprovalPending, InvalidArgument, PermissionDenied, RequestIdReused
from gateway.policy.document import PolicyDocument, RedactionSection, ResultRule, Rule
from gateway.policy.judge import Policy
from gateway.runs.runs import RunRequest
from gateway.storage.database import Database
from gateway.storage.tables import runs as runs_table
from gateway.storage.tables import tool_calls
from gateway.tenancy.tenants import Tenant
from sandbox.errors import NotFound
from tests.made_images import PDF, png, png_header
from tests.unit.agent.fakes import FakeEntry, FakeFiles, says
from tests.unit.gateway.runs.test_taking_over import Gateway
from tests.unit.gateway.runs.test_waiting_runs import MODEL, Host, World

PATH = "/workspace/plot.png"
SHOWING = AgentSettings.model_validate({"capabilities": {"attachments": {"file_mib": 1, "shown": 2, "shown_mib": 1}}})


def _policy(secret: Any = "deny") -> Policy:
    rules = (
        Rule(id="files", tools=("read_file",), effect="allow", reason="a test"),
        Rule(id="secrets", tools=("read_file",), paths=("/workspace/secret/**",), effect=secret, reason="not yours"),
    )
    return Policy(PolicyDocument(version=1, rules=rules, redaction=RedactionSection(well_known=False)))


class Files(FakeFiles):
    """Files as a sandbox has them."""

    async def stat(self, path: str) -> FakeEntry:
        if path not in self.files:
            raise NotFound(f"{path} does not exist")
        return await super().stat(path)


class Gallery(World):
    """A world with an agent that shows files, and the default one that does not."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.files = Files()
        self.files.files = {
            PATH: png(),
            "/workspace/a.pdf": PDF,
            "/workspace/secret/a.png": png(),
            "/workspace/notes.txt": b"notes",
            "/workspace/huge.png": png_header(60_000, 60_000),
            "/workspace/heavy.png": png() + bytes(1024 * 1024),
            "/workspace/half.pdf": PDF + bytes(600 * 1024),
            "/workspace/other.pdf": PDF + bytes(600 * 1024),
        }
        self.put_in_force("v2", _policy())

    async def named(self, name: str) -> Tenant:
        return Tenant(name, self.in_force, MODEL, {"default": AgentSettings(), "shows": SHOWING})


@pytest.fixture
async def world(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gallery]:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    database = await Database.open(database_url)
    made = Gallery(database)
    made.script = [says("Seen.")]
    yield made
    await database.close()


@pytest.fixture
async def host(world: Gallery) -> AsyncIterator[Callable[[], Host]]:
    hosts: list[Host] = []

    def make() -> Host:
        hosts.append(Host(world))
        return hosts[-1]

    yield make
    for one in hosts:
        await one.runs.close()


async def _start(gateway: Host, *paths: str, thread: str = "t", agent: str = "shows", id_: str = "") -> Any:
    acme = await gateway.world.named("acme")
    return await gateway.runs.start(acme, RunRequest("look", thread, agent, id=id_, attachments=paths))


async def test_the_task_is_shown_with_its_files_and_the_thread_keeps_the_references(
    world: Gallery, host: Callable[[], Host]
) -> None:
    gateway = host()
    run = await _start(gateway, "plot.png", "/workspace/a.pdf")
    await gateway.status(run, "completed")
    (request,) = world.asked
    (message,) = request.messages
    assert message.content == "look"
    assert [(one.path, one.media_type) for one in message.attachments] == [
        (PATH, "image/png"),
        ("/workspace/a.pdf", "application/pdf"),
    ]
    assert set(request.contents.values()) == {png(), PDF}
    kept = await gateway.store.messages_of(await gateway.store.thread("acme", "t"))
    assert kept[0] == message


@pytest.mark.parametrize(
    "path, said",
    [
        ("missing.png", "attachments: /workspace/missing.png does not exist"),
        ("notes.txt", "attachments: /workspace/notes.txt is not a PNG, JPEG, GIF, WebP or PDF"),
        ("huge.png", "attachments: /workspace/huge.png is a PNG image of 60000 x 60000 pixels"),
        ("heavy.png", "attachments: /workspace/heavy.png is larger than the 1,048,576 bytes"),
        ("a\0b", "attachments: the path contains a NUL"),
    ],
)
async def test_a_file_that_cannot_be_shown_is_one_line_that_names_it_and_no_run(
    world: Gallery, host: Callable[[], Host], path: str, said: str
) -> None:
    gateway = host()
    with pytest.raises(InvalidArgument) as refused:
        await _start(gateway, PATH, path)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert await world.database.rows(select(runs_table.c.id)) == []


@pytest.mark.parametrize(
    "asked, said",
    [
        ({"agent": "default"}, "the agent 'default' takes none; add attachments to its capabilities"),
        ({"thread": ""}, "name the thread"),
    ],
)
async def test_attachments_need_the_capability_and_a_thread(
    host: Callable[[], Host], asked: dict[str, str], said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        await _start(host(), PATH, **asked)


async def test_no_more_is_taken_than_a_request_shows(host: Callable[[], Host]) -> None:
    gateway = host()
    with pytest.raises(InvalidArgument, match="2 files at most"):
        await _start(gateway, PATH, "a.pdf", "notes.txt")
    with pytest.raises(InvalidArgument, match="1 MiB in all at most"):
        await _start(gateway, "half.pdf", "other.pdf")


async def test_a_file_that_the_policy_denies_or_asks_about_is_not_looked_at(
    world: Gallery, host: Callable[[], Host]
) -> None:
    gateway = host()
    with pytest.raises(PermissionDenied, match=r"attachments: /workspace/secret/a.png: not yours \(rule secrets\)"):
        await _start(gateway, "secret/a.png")
    world.put_in_force("v3", _policy("ask"))
    with pytest.raises(ApprovalPending) as waits:
        await _start(gateway, "secret/a.png")
    await gateway.answer(waits.value.details["approval_id"])
    await gateway.status(await _start(gateway, "secret/a.png"), "completed")
    assert len(world.asked[0].contents) == 1


async def test_a_rule_on_results_searches_the_file_too(world: Gallery, host: Callable[[], Host]) -> None:
    policy = _policy()
    rule = ResultRule(id="internal", reason="Internal papers.", contains="Catalog", tools=("read_file",))
    document = policy.document.model_copy(update={"results": (rule,)})
    world.put_in_force("v3", Policy(document))
    gateway = host()
    with pytest.raises(InvalidArgument, match=r"attachments: /workspace/a.pdf: .* rule internal: Internal papers"):
        await _start(gateway, "a.pdf")
    await gateway.status(await _start(gateway, PATH), "completed")


async def test_each_file_is_journaled_as_a_call_of_the_service(world: Gallery, host: Callable[[], Host]) -> None:
    gateway = host()
    await gateway.status(await _start(gateway, PATH), "completed")
    rows = await world.database.rows(select(tool_calls.c.name, tool_calls.c.rule, tool_calls.c.run_id))
    assert [tuple(row) for row in rows] == [("view_file", "files", None)]


async def test_a_request_with_other_attachments_is_another_request(host: Callable[[], Host]) -> None:
    gateway = host()
    run = await _start(gateway, PATH, id_="r")
    await gateway.status(run, "completed")
    assert (await _start(gateway, PATH, id_="r")).id == run.id
    with pytest.raises(RequestIdReused):
        await _start(gateway, "a.pdf", id_="r")
    assert RunRequest("a").digest == RunRequest("a", attachments=()).digest


async def test_a_gateway_that_takes_a_run_over_before_its_first_step_shows_the_files_too(
    world: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Gateway(world, "gw_1")
    await first.serve()
    monkeypatch.setattr(first.runs._hosting, "start", lambda *_: None)  # it dies as soon as the run is stored
    run = await _start(first, PATH)
    await first.lose()
    second = Gateway(world, "gw_2")
    await second.serve()
    await second.status(run, "completed")
    await second.runs.close()
    assert [message.attachments[0].path for message in world.asked[0].messages] == [PATH]
    assert list(world.asked[0].contents.values()) == [png()]
