"""docs/tutorial.md, run from top to bottom: every shell block, in one terminal, against the gateway that it starts."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from agent.models.scripted_model_server import Call, ScriptedModelServer, Turn
from tests.docker_state import containers_of, volumes_of
from tests.tutorial_reader import Reader, blocks, matches, policy_is_live, serving

_SECTIONS = 8
_SUM = "python3 -c \"print(sum(int(l.split(',')[1]) for l in list(open('sales.csv'))[1:]))\""
TURNS = (
    Turn(expect=["sales.csv"], say="I add them up.", calls=[Call("execute", {"command": _SUM})]),
    Turn(expect=["200"], calls=[Call("write_file", {"path": "/workspace/total.txt", "content": "200\n"})]),
    Turn(say="The total is 200."),
)


async def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    reader = Reader.in_directory(tmp_path)
    compared = 0
    async with ScriptedModelServer(TURNS) as model, AsyncExitStack() as first_terminal:
        scripted = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "none", "AIRLOCK_MODEL": "scripted"}
        for block in blocks():
            if block.language != "sh":
                reader.save(block)
                continue
            typed = block.typed
            if typed.startswith("airlock serve"):
                log = await first_terminal.enter_async_context(serving(reader, typed, scripted))
                said = log.read_text(encoding="utf-8")
            else:
                said = await asyncio.to_thread(reader.type, typed)
            if block.output is not None:
                assert matches(block.output, said), f"{typed}\n--- the page shows\n{block.output}\n--- came\n{said}"
                compared += 1
            if "policy apply" in typed:
                await policy_is_live(reader)
        assert not model.failures
    assert compared > _SECTIONS
    instance = (tmp_path / "airlock-data" / "state" / "instance").read_text(encoding="ascii")
    assert containers_of(instance) == []
    assert volumes_of(instance) == []
