"""Reads the output of background processes, redacted: each page with the bytes around it."""

from dataclasses import dataclass, replace

from gateway.redaction import Redactor
from gateway.tool_calls.thread_sandbox import ThreadSandbox
from sandbox.protocols import ProcessPage


@dataclass(frozen=True)
class ProcessReader:
    """Reads pages."""

    sandbox: ThreadSandbox
    redactor: Redactor

    async def read(self, process_id: str, *, stderr: bool, offset: int, wait_s: float) -> ProcessPage:
        """Return a page up to what may be the start of a secret, which waits for more output or the stream's end."""
        page = await self.sandbox.read_process(process_id, stderr=stderr, offset=offset, wait_s=wait_s)
        if self.redactor.idle or not page.data:
            return page
        margin_bytes = self.redactor.margin_bytes
        start = max(0, page.offset - margin_bytes)
        before, _ = await self._bytes(process_id, start, page.offset - start, stderr=stderr)
        after, end = b"", page.end
        if not end:
            after, end = await self._bytes(process_id, page.offset + len(page.data), margin_bytes, stderr=stderr)
        stream = self.redactor.stream()
        shown = await self.redactor.feed(stream, before + page.data + after)
        if end:
            shown += stream.flush()
        if len(before) < page.offset:
            shown = self.redactor.without_cut_start(shown)  # what came first is lost, or further away than any secret
        # Shorter than the page, or nothing, where its end is not known yet.
        return replace(page, data=shown[len(before) : len(before) + len(page.data)])

    async def _bytes(self, process_id: str, offset: int, length: int, *, stderr: bool) -> tuple[bytes, bool]:
        """Return the bytes from `offset` that are there, and whether the stream ends with them."""
        data = b""
        while len(data) < length:
            page = await self.sandbox.read_process(
                process_id, stderr=stderr, offset=offset + len(data), limit_bytes=length - len(data), wait_s=0
            )
            if page.offset != offset + len(data):
                # Bytes in between are lost; what stands before the page is what comes after them.
                missing = page.offset - offset
                if missing >= length:
                    return b"", False
                offset, length, data = page.offset, length - missing, b""
            data += page.data
            if page.end or not page.data:
                return data, page.end
        return data, False
