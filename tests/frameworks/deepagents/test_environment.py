import asyncio

from gateway.client import Client


async def test_the_client_works_with_the_packages_of_the_framework(address: str, api_key: str, thread: str) -> None:
    async with Client(address, api_key) as airlock, asyncio.timeout(60):
        result = await airlock.call_tool("execute", {"command": "echo hello"}, thread=thread)
    assert (result.content, result.verdict) == ("hello\n", "allow")
