"""The health of a sandbox, which E2B's SDKs ask for with the sandbox's access token."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from gateway.config.http_settings import HttpSettings
from gateway.e2b.access import Access, access_token
from gateway.e2b.envd_calls import EnvdCalls
from gateway.e2b.envd_face import EnvdRoute
from gateway.http.app import make_app

SANDBOX: Any = SimpleNamespace(id="i1", tenant="acme", state="running", secret="s", ends_us=None, options={})
PAUSED: Any = SimpleNamespace(**{**vars(SANDBOX), "id": "i2", "state": "paused"})
OTHER: Any = SimpleNamespace(**{**vars(SANDBOX), "id": "i3", "secret": "another"})


class Store:
    async def get(self, sandbox_id: str) -> Any:
        return {one.id: one for one in (SANDBOX, PAUSED)}.get(sandbox_id)


async def health(sandbox_id: str, token: str) -> tuple[int, str]:
    nothing: Any = SimpleNamespace()
    access = Access(Store(), nothing, nothing)  # type: ignore[arg-type]
    app = make_app([EnvdRoute(EnvdCalls(access, nothing), "/e2b")], HttpSettings(), loopback=False)
    headers = {"e2b-sandbox-id": sandbox_id, **({"x-access-token": token} if token else {})}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        answer = await client.get("/e2b/health", headers=headers)
    return answer.status_code, answer.text


async def test_the_holder_of_a_token_reads_whether_the_sandbox_runs() -> None:
    assert await health("i1", access_token(SANDBOX, "key_1")) == (204, "")
    status, said = await health("i2", access_token(PAUSED, "key_1"))
    assert (status, "is paused" in said) == (502, True)


@pytest.mark.parametrize("token", ["", "key_1", "key_1.0000", access_token(OTHER, "key_1")])
async def test_without_its_token_a_sandbox_looks_like_one_that_is_not_there(token: str) -> None:
    status, said = await health("none", token)
    assert status == 502
    for sandbox_id in ("i1", "i2"):
        assert await health(sandbox_id, token) == (502, said.replace("none", sandbox_id))
