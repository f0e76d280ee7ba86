"""The Python client.

    async with Client("127.0.0.1:7443", api_key) as airlock:
        result = await airlock.call_tool("execute", {"command": "true", "timeout_s": 5}, thread="t1")
        await airlock.write_file("t1", "/workspace/a.bin", data)
        result = await airlock.run_program(["wc", "-c"], thread="t1", stdin=data)
        async for event in airlock.run("fix the tests", thread="t1"):
            ...

Every failure is a class of gateway.errors: NotFound, PermissionDenied, IsADirectory, InvalidPath, Unauthenticated, ...
A tool call that was refused or failed is a result, not an exception.

Start at `client.py`. Imports gateway.errors, gateway.audit_chain, gateway.v1 and gateway.telemetry.client_span only.
"""

from __future__ import annotations

from gateway.audit_chain.record import AuditRecord as AuditRecord
from gateway.client.approvals import Approval as Approval, Grant as Grant
from gateway.client.audit import AuditQuery as AuditQuery
from gateway.client.client import Client as Client, Evicted as Evicted, Tool as Tool, ToolResult as ToolResult
from gateway.client.connection import Tls as Tls
from gateway.client.files import FileEntry as FileEntry, FileKind as FileKind
from gateway.client.input import Input as Input
from gateway.client.processes import Process as Process, Processes as Processes, ProcessOutput as ProcessOutput
from gateway.client.programs import ProgramResult as ProgramResult
from gateway.client.retry import Retry as Retry
from gateway.client.runs import Event as Event, PolicyMode as PolicyMode, Run as Run, RunStatus as RunStatus
from gateway.client.sandboxes import (
    DiskStats as DiskStats,
    Fork as Fork,
    Sandbox as Sandbox,
    SandboxStats as SandboxStats,
    SandboxTransition as SandboxTransition,
    Snapshot as Snapshot,
)
from gateway.client.threads import Thread as Thread, ThreadMessage as ThreadMessage
from gateway.errors import (
    AirlockError as AirlockError,
    AlreadyResolved as AlreadyResolved,
    ApprovalPending as ApprovalPending,
    Cancelled as Cancelled,
    ClientClosed as ClientClosed,
    Conflict as Conflict,
    DeadlineExceeded as DeadlineExceeded,
    EditRefused as EditRefused,
    Exhausted as Exhausted,
    InProgress as InProgress,
    InputGap as InputGap,
    InputNotTaken as InputNotTaken,
    Internal as Internal,
    InvalidArgument as InvalidArgument,
    InvalidPath as InvalidPath,
    IsADirectory as IsADirectory,
    NoSpace as NoSpace,
    NotADirectory as NotADirectory,
    NotFound as NotFound,
    OtherEngine as OtherEngine,
    Overloaded as Overloaded,
    PermissionDenied as PermissionDenied,
    PolicyChanged as PolicyChanged,
    PolicyInvalid as PolicyInvalid,
    ProcessEnded as ProcessEnded,
    QuotaExceeded as QuotaExceeded,
    RequestIdReused as RequestIdReused,
    SandboxBusy as SandboxBusy,
    ScopeMissing as ScopeMissing,
    StartFailed as StartFailed,
    ThreadBusy as ThreadBusy,
    TooLarge as TooLarge,
    Unauthenticated as Unauthenticated,
    Unavailable as Unavailable,
    WorkspaceNotSaved as WorkspaceNotSaved,
    WrongEventLoop as WrongEventLoop,
)
