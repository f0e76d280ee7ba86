"""Images through a gateway: made by tool code in a sandbox, viewed by the agent, sent to the model byte by byte."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agent.models.scripted_model_server import Call, ScriptedModelServer, Turn
from gateway.client import Client, Event
from gateway.errors import InvalidArgument, PermissionDenied
from tests.gateway_process import Home, airlock, make_home, served
from tests.made_images import PDF, png, png_header

ENV = {"OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}
POLICY = """\
version: 1
rules:
  - {id: files, tools: [read, write], paths: [/workspace, /workspace/**], effect: allow, reason: the workspace}
  - {id: no-secrets, tools: [read_file], paths: [/workspace/secret/**], effect: deny, reason: not for agents}
  - {id: commands, tools: [execute], argv: [[python3]], effect: allow, reason: to paint}
  - {id: publish, tools: [execute], argv: [[touch]], effect: ask, reason: somebody looks first}
  - {id: helpers, tools: [spawn_subagent], effect: allow, reason: they may help}
"""
# What tool code writes, byte for byte what tests.made_images makes.
PAINT = b"""\
import pathlib, struct, zlib

def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

rows = (b"\\0" + bytes([7]) * 5) * 4
head = chunk(b"IHDR", struct.pack(">IIBBBBB", 5, 4, 8, 0, 0, 0, 0))
image = b"\\x89PNG\\r\\n\\x1a\\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
pathlib.Path("plot.png").write_bytes(image)
"""
PAINTED = png(5, 4, 7)
AGENT = {
    "system_prompt": "You paint.",
    "capabilities": {
        "filesystem": None,
        "bash": None,
        "attachments": {"file_mib": 1, "shown": 3},
        "subagents": {"definitions": {"critic": {"description": "looks at pictures", "system_prompt": "You look."}}},
    },
}


async def _home(directory: Path, model: ScriptedModelServer) -> tuple[Home, str]:
    home = await asyncio.to_thread(make_home, directory)
    agents = {"painter": AGENT}
    home.configure(model={"base_url": model.base_url, "name": "scripted", "stream": True}, agents=agents)
    return home, await asyncio.to_thread(home.add_tenant, "gallery", POLICY)


def _images(request: dict[str, Any]) -> list[bytes]:
    parts = [part for said in request["messages"] if isinstance(said["content"], list) for part in said["content"]]
    shown = [part.get("image_url", {}).get("url") or part.get("file", {}).get("file_data") for part in parts]
    uris = [uri for uri in shown if uri]
    return [base64.b64decode(uri.partition(";base64,")[2]) for uri in uris]


def _finished(events: Sequence[Event], name: str) -> list[dict[str, Any]]:
    found = (event.payload for event in events if event.type == "tool_call_finished")
    return [dict(payload) for payload in found if payload["name"] == name]


async def _until(airlock: Client, run_id: str, status: str) -> None:
    async with asyncio.timeout(60):
        while (await airlock.get_run(run_id)).status != status:
            await asyncio.sleep(0.05)


async def test_a_model_sees_what_a_tool_made_and_still_does_after_an_approval_on_another_gateway(
    tmp_path: Path,
) -> None:
    turns = [
        Turn(calls=[Call("execute", {"command": "python3 paint.py"})]),
        Turn(calls=[Call("view_file", {"path": "plot.png"}), Call("view_file", {"path": "secret/plot.png"})]),
        Turn(
            expect=["PNG image, 5 x 4 pixels", "no-secrets", "[view_file: the image /workspace/plot.png]"],
            calls=[Call("execute", {"command": "touch done"})],
        ),
        Turn(expect=[None], say="It is grey."),
    ]
    async with ScriptedModelServer(turns) as model:
        home, key = await _home(tmp_path / "home", model)
        home.configure(sandbox={"on_stop": "keep", "keep_workspaces": True})
        with served(home, ENV) as gateway:
            async with Client(gateway.address, key) as airlock:
                await airlock.write_file("t", "/workspace/paint.py", PAINT)
                await airlock.write_file("t", "/workspace/secret/plot.png", png(9, 9))
                run = await airlock.start_run("paint", thread="t", agent="painter")
                await _until(airlock, run.id, "waiting")
        # Another process: the run continues from what is stored, which has references and no bytes.
        with served(home, ENV) as gateway:
            async with Client(gateway.address, key) as airlock:
                approver_key = await asyncio.to_thread(home.make_key, "gallery", "approve")
                async with Client(gateway.address, approver_key) as approver:
                    (approval,) = await approver.approvals(run_id=run.id)
                    await approver.resolve_approval(approval.id, "once")
                events = [event async for event in airlock.watch_run(run.id)]
                messages = [one async for one in airlock.messages("t")]
                await airlock.delete_thread("t")
        assert model.failures == []
        assert events[-1].payload["answer"] == "It is grey."
        assert [_images(request) for request in model.requests] == [[], [], [PAINTED], [PAINTED]]
        seen, refused = _finished(events, "view_file")
        assert (seen["rule"], [one["path"] for one in seen["attachments"]]) == ("files", ["/workspace/plot.png"])
        assert (refused["verdict"], refused["rule"], refused["attachments"]) == ("deny", "no-secrets", [])
        (attached,) = [one for message in messages for one in message.attachments]
        assert (attached.path, attached.media_type, attached.size_bytes) == (
            "/workspace/plot.png",
            "image/png",
            len(PAINTED),
        )
        stored = " ".join(str(row) for row in home.rows("select message from messages"))
        assert base64.b64encode(PAINTED).decode() not in stored


async def test_files_come_with_the_task_and_only_as_they_were(tmp_path: Path) -> None:
    turns = [
        Turn(expect=["what is this?"], say="A picture."),
        Turn(expect=["and these?"], calls=[Call("spawn_subagent", {"name": "critic", "task": "look at b.png"})]),
        Turn(expect=["It is small."], say="Two."),
        Turn(expect=["once more"], say="As before."),
    ]
    critic = [
        Turn(expect=["look at b.png"], calls=[Call("view_file", {"path": "b.png"})]),
        Turn(expect=["PNG image"], say="It is small."),
    ]
    async with ScriptedModelServer(turns, by_model={"critic": critic}) as model:
        home, key = await _home(tmp_path / "home", model)
        definition = {**AGENT["capabilities"]["subagents"]["definitions"]["critic"], "model": {"name": "critic"}}  # type: ignore[index]
        capabilities = {**AGENT["capabilities"], "subagents": {"definitions": {"critic": definition}}}  # type: ignore[dict-item]
        home.configure(agents={"painter": {**AGENT, "capabilities": capabilities}})
        with served(home, ENV) as gateway:
            async with Client(gateway.address, key) as client:

                async def run(task: str, *attached: str) -> dict[str, Any]:
                    asked = client.run(task, thread="t", agent="painter", attachments=attached)
                    return [dict(event.payload) async for event in asked][-1]

                await client.write_file("t", "/workspace/a.png", png(3, 3))
                await client.write_file("t", "/workspace/b.png", png(4, 4))
                await client.write_file("t", "/workspace/c.pdf", PDF)
                await client.write_file("t", "/workspace/secret/d.png", png(9, 9))
                await client.write_file("t", "/workspace/huge.png", png_header(50_000, 50_000))
                assert (await run("what is this?", "a.png"))["answer"] == "A picture."
                await client.write_file("t", "/workspace/a.png", png(3, 3, 200))
                assert (await run("and these?", "b.png", "/workspace/c.pdf"))["answer"] == "Two."
                for path, said in {
                    "none.png": "attachments: /workspace/none.png",
                    "huge.png": "50000 x 50000 pixels",
                    ".": "attachments: /workspace is not a file",
                }.items():
                    with pytest.raises(InvalidArgument, match=said):
                        await run("what is this?", path)
                with pytest.raises(PermissionDenied, match="no-secrets"):
                    await run("what is this?", "secret/d.png")
                with pytest.raises(InvalidArgument, match="takes none"):
                    await client.start_run("what is this?", thread="t", attachments=["a.png"])
                said = await asyncio.to_thread(  # the model answers in this loop
                    airlock,
                    *("run", "once more", "--thread", "t", "--agent", "painter", "--attach", "b.png"),
                    env={"AIRLOCK_ADDRESS": gateway.address, "AIRLOCK_API_KEY": key},
                )
                assert "As before." in said.stdout
                await client.delete_thread("t")
        assert model.failures == []
        of_painter = [request for request in model.requests if request["model"] == "scripted"]
        of_critic = [request for request in model.requests if request["model"] == "critic"]
        assert [_images(one) for one in of_painter] == [
            [png(3, 3)],
            [png(4, 4), PDF],
            [png(4, 4), PDF],
            [png(4, 4), PDF, png(4, 4)],
        ]
        assert [_images(one) for one in of_critic] == [[], [png(4, 4)]]
        assert "[not shown: the image /workspace/a.png; it has changed since" in str(of_painter[1]["messages"])
