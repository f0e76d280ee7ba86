"""The Python client.

    async with Client("127.0.0.1:7443", api_key) as airlock:
        result = await airlock.call_tool("execute", {"command": "true", "timeout_s": 5}, thread="t1")
        await airlock.write_file("t1", "/workspace/a.bin", data)
        result = await airlock.run_program(["wc", "-c"], thread="t1", stdin=data)
        async for event in airlock.run("fix the tests", thread="t1"):
            ...

Every failure is a class of gateway.errors: NotFound, PermissionDenied, IsADirectory, InvalidPath, Unauthenticated, ...
A tool call that was refused or failed is a result, not an exception.
"""

from __future__ import annotations

from gateway.audit_chain.record import AuditRecord
from gateway.client.approvals import Approval, Grant
from gateway.client.audit import AuditQuery
from gateway.client.client import Client, Evicted, Tool, ToolResult
from gateway.client.files import FileEntry, FileKind
from gateway.client.input import Input
from gateway.client.processes import Process, Processes, ProcessOutput
from gateway.client.programs import ProgramResult
from gateway.client.retry import Retry
from gateway.client.runs import Event, PolicyMode, Run, RunStatus
from gateway.client.sandboxes import DiskStats, Sandbox, SandboxStats, SandboxTransition
from gateway.client.snapshots import Fork, Snapshot
from gateway.client.threads import Thread, ThreadMessage
from gateway.client.tls import Tls
from gateway.errors import (
    AirlockError,
    AlreadyResolved,
    ApprovalPending,
    Cancelled,
    ClientClosed,
    Conflict,
    DeadlineExceeded,
    EditRefused,
    Exhausted,
    InProgress,
    InputGap,
    InputNotTaken,
    Internal,
    InvalidArgument,
    InvalidPath,
    IsADirectory,
    NoSpace,
    NotADirectory,
    NotFound,
    OtherEngine,
    Overloaded,
    PermissionDenied,
    PolicyChanged,
    PolicyInvalid,
    ProcessEnded,
    QuotaExceeded,
    RequestIdReused,
    SandboxBusy,
    ScopeMissing,
    StartFailed,
    ThreadBusy,
    TooLarge,
    Unauthenticated,
    Unavailable,
    WorkspaceNotSaved,
    WrongEventLoop,
)

__all__ = [
    "AirlockError",
    "AlreadyResolved",
    "Approval",
    "ApprovalPending",
    "AuditQuery",
    "AuditRecord",
    "Cancelled",
    "Client",
    "ClientClosed",
    "Conflict",
    "DeadlineExceeded",
    "DiskStats",
    "EditRefused",
    "Event",
    "Evicted",
    "Exhausted",
    "FileEntry",
    "FileKind",
    "Fork",
    "Grant",
    "InProgress",
    "Input",
    "InputGap",
    "InputNotTaken",
    "Internal",
    "InvalidArgument",
    "InvalidPath",
    "IsADirectory",
    "NoSpace",
    "NotADirectory",
    "NotFound",
    "OtherEngine",
    "Overloaded",
    "PermissionDenied",
    "PolicyChanged",
    "PolicyInvalid",
    "PolicyMode",
    "Process",
    "ProcessEnded",
    "ProcessOutput",
    "Processes",
    "ProgramResult",
    "QuotaExceeded",
    "RequestIdReused",
    "Retry",
    "Run",
    "RunStatus",
    "Sandbox",
    "SandboxBusy",
    "SandboxStats",
    "SandboxTransition",
    "ScopeMissing",
    "Snapshot",
    "StartFailed",
    "Thread",
    "ThreadBusy",
    "ThreadMessage",
    "Tls",
    "TooLarge",
    "Tool",
    "ToolResult",
    "Unauthenticated",
    "Unavailable",
    "WorkspaceNotSaved",
    "WrongEventLoop",
]
