"""Files of the thread's sandbox as resources: the first ones of /workspace are listed, any can be read by its URI."""

import base64
import mimetypes

from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    BlobResourceContents,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextResourceContents,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from gateway.errors import InvalidArgument, NotFound
from gateway.mcp.peer import Peer
from gateway.mcp.results import data_of
from gateway.mcp.uris import TEMPLATE, path_of, uri_of

LISTED = 1000
READ_LIMIT_BYTES = 4 * 1024 * 1024
_WORKSPACE = "/workspace"
# Until 2025-11-25; later revisions have no code of its own for it.
_NOT_FOUND = -32002


async def list_resources(peer: Peer) -> ListResourcesResult:
    """Return the first LISTED files of the workspace."""
    found: list[Resource] = []
    async for entry in peer.client.list_files(peer.thread, _WORKSPACE, pattern="**/*"):
        if entry.kind != "file":
            continue
        path = f"{_WORKSPACE}/{entry.name}"
        found.append(
            Resource(uri=uri_of(path), name=entry.name, size=entry.size_bytes, mime_type=mimetypes.guess_type(path)[0])
        )
        if len(found) == LISTED:
            break
    return ListResourcesResult(resources=found)


def list_templates() -> ListResourceTemplatesResult:
    """Return the template of all files."""
    said = "A file of the sandbox, by its absolute path"
    return ListResourceTemplatesResult(
        resource_templates=[ResourceTemplate(uri_template=TEMPLATE, name="file", description=said)]
    )


async def read_resource(peer: Peer, uri: str, protocol_version: str) -> ReadResourceResult:
    """Return a file, as text if it is UTF-8."""
    path = path_of(uri)
    try:
        data = await peer.client.read_file(peer.thread, path, limit_bytes=READ_LIMIT_BYTES + 1)
    except NotFound as error:
        code = INVALID_PARAMS if protocol_version in MODERN_PROTOCOL_VERSIONS else _NOT_FOUND
        raise MCPError(code, str(error), {**data_of(error), "uri": uri}) from None
    if len(data) > READ_LIMIT_BYTES:
        raise InvalidArgument(
            f"uri: {path} has more than {READ_LIMIT_BYTES:,} bytes: read parts of it with the tool read_file"
        )
    kind = mimetypes.guess_type(path)[0]
    try:
        text = data.decode()
    except UnicodeDecodeError:
        blob = base64.b64encode(data).decode()
        contents: TextResourceContents | BlobResourceContents = BlobResourceContents(
            uri=uri, blob=blob, mime_type=kind or "application/octet-stream"
        )
    else:
        contents = TextResourceContents(uri=uri, text=text, mime_type=kind or "text/plain")
    return ReadResourceResult(contents=[contents])
