"""The files that a model is shown with the task of a run: judged, journaled and looked at before the run starts."""

from collections.abc import Sequence

from agent.capabilities.attachments import VIEW
from agent.errors import InvalidPath
from agent.messages import Attachment
from agent.tools.paths import resolve
from gateway.config.agent_settings import AttachmentsSettings
from gateway.errors import InvalidArgument, PermissionDenied
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.service_executor import Viewing
from gateway.tool_calls.tool_calls import NewCall, ToolCalls
from sandbox.errors import FileError, said_outside


async def task_attachments(
    tool_calls: ToolCalls, tenant: Tenant, agent: str, thread: str, paths: Sequence[str]
) -> tuple[Attachment, ...]:
    """Return what is attached to the task of an agent, each file once.

    Raises InvalidArgument naming the file that cannot be shown, PermissionDenied for one that the policy denies,
    ApprovalPending for one that it asks about, OtherEngine if the thread's files are on another engine.
    """
    if not paths:
        return ()
    settings = tenant.agents[agent].capabilities.attachments
    if settings is None:
        raise InvalidArgument(f"attachments: the agent {agent!r} takes none; add attachments to its capabilities")
    if len(paths) > settings.shown:
        raise InvalidArgument(f"attachments: {settings.shown} files at most, as many as a request shows")
    if not thread:
        raise InvalidArgument("attachments: name the thread whose workspace has the files; a new thread has none")
    resolved = dict.fromkeys(map(_resolved, paths))
    found: list[Attachment] = []
    for path in resolved:
        found.append(await _attachment(tool_calls, tenant, settings, thread, path))
        if sum(one.size_bytes for one in found) > settings.shown_mib * 1024 * 1024:  # no more are read
            raise InvalidArgument(f"attachments: {settings.shown_mib} MiB in all at most, as many as a request shows")
    return tuple(found)


def _resolved(path: str) -> str:
    try:
        return resolve(path)
    except InvalidPath as error:
        raise InvalidArgument(f"attachments: {error}") from error


async def _attachment(
    tool_calls: ToolCalls, tenant: Tenant, settings: AttachmentsSettings, thread: str, path: str
) -> Attachment:
    viewing = Viewing(limit_bytes=settings.file_mib * 1024 * 1024)
    viewing.asked = {"path": path}
    new = NewCall(thread, VIEW, viewing.asked, executor=viewing, past_stored=True)
    finished = await tool_calls.call(tenant, new)
    finished.raise_waiting()
    verdict = finished.execution.verdict
    if finished.execution.blocked and verdict is not None:
        raise PermissionDenied(f"attachments: {path}: {verdict.reason} (rule {verdict.rule})", rule=verdict.rule)
    if isinstance(viewing.error, FileError | InvalidArgument):
        raise InvalidArgument(f"attachments: {said_outside(viewing.error)}") from viewing.error
    if viewing.error is not None:
        raise viewing.error
    if finished.result.is_error or viewing.seen is None:  # a rule on results, or a hook that took the call over
        raise InvalidArgument(f"attachments: {path}: {finished.result.text()}")
    return viewing.seen.attachment
