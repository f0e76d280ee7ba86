"""Files in and out as streams: read_file and write_file for services, down the same way as any tool call.

Each class stands in for the tools of one call: policy judges its path, the journal has it, and the bytes flow past.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from agent.messages import ToolCall
from agent.tool import ToolContext, ToolResult, ToolSpec
from gateway.calls.thread_sandbox import ThreadSandbox
from gateway.errors import AirlockError, DeadlineExceeded
from sandbox.errors import SandboxError


class _Transfer:
    """What both directions share: no tools to list, nothing to check, an error kept for the service to raise."""

    def __init__(self, sandbox: ThreadSandbox) -> None:
        self._sandbox = sandbox
        self.moved_bytes = 0
        self.error: SandboxError | AirlockError | None = None

    def specs(self) -> Sequence[ToolSpec]:
        """List nothing: no model is shown a transfer."""
        return ()

    def check(self, call: ToolCall) -> ToolResult | None:
        """Accept: the service made the arguments."""
        del call
        return None

    def normalised(self, call: ToolCall) -> ToolCall:
        """Return the call as it is: the service has resolved its path."""
        return call

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        """Move the bytes."""
        del context
        path = str((call.arguments or {})["path"])
        try:
            return ToolResult(content=(await self._move(path)).encode())
        except (SandboxError, AirlockError) as error:
            self.error = error
            return ToolResult.error(str(error))

    async def _move(self, path: str) -> str:
        raise NotImplementedError


class Upload(_Transfer):
    """Writes what a client streams."""

    audit_kind = "file_write"

    def __init__(self, sandbox: ThreadSandbox, chunks: AsyncIterator[bytes]) -> None:
        super().__init__(sandbox)
        self._chunks = chunks
        self.size_bytes = 0

    async def _move(self, path: str) -> str:
        await self._sandbox.write(path, self._counted())
        return f"{self.size_bytes} bytes written"

    async def _counted(self) -> AsyncIterator[bytes]:
        async for chunk in self._chunks:
            self.size_bytes += len(chunk)
            self.moved_bytes = self.size_bytes
            yield chunk


class Download(_Transfer):
    """Streams a file to a client; `chunks` holds a few at most, so a slow client slows the sandbox, not the gateway."""

    audit_kind = "file_read"

    def __init__(self, sandbox: ThreadSandbox, chunks: asyncio.Queue[bytes | None], stall_limit_s: float) -> None:
        super().__init__(sandbox)
        self._chunks = chunks
        self._stall_limit_s = stall_limit_s

    async def _move(self, path: str) -> str:
        size_bytes = 0
        async for chunk in self._sandbox.read(path):
            size_bytes += len(chunk)
            self.moved_bytes = size_bytes
            try:
                async with asyncio.timeout(self._stall_limit_s):  # a reader that stalls must not hold a sandbox
                    await self._chunks.put(chunk)
            except TimeoutError:
                raise DeadlineExceeded(f"nothing was read for {self._stall_limit_s:g} s; read the file again") from None
        return f"{size_bytes} bytes read"
