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

from gateway.audit_chain.chain import AuditRecord as AuditRecord
from gateway.client.approvals import Approval as Approval
from gateway.client.approvals import Grant as Grant
from gateway.client.audit import AuditQuery as AuditQuery
from gateway.client.client import Client as Client
from gateway.client.client import Evicted as Evicted
from gateway.client.client import Tool as Tool
from gateway.client.client import ToolResult as ToolResult
from gateway.client.connection import Tls as Tls
from gateway.client.files import FileEntry as FileEntry
from gateway.client.files import FileKind as FileKind
from gateway.client.input import Input as Input
from gateway.client.ports import PortConnection as PortConnection
from gateway.client.processes import Process as Process
from gateway.client.processes import Processes as Processes
from gateway.client.processes import ProcessOutput as ProcessOutput
from gateway.client.processes import ProgramResult as ProgramResult
from gateway.client.retry import Retry as Retry
from gateway.client.runs import Event as Event
from gateway.client.runs import ModelUse as ModelUse
from gateway.client.runs import PolicyMode as PolicyMode
from gateway.client.runs import Run as Run
from gateway.client.runs import RunStatus as RunStatus
from gateway.client.sandboxes import DiskStats as DiskStats
from gateway.client.sandboxes import Fork as Fork
from gateway.client.sandboxes import Sandbox as Sandbox
from gateway.client.sandboxes import SandboxStats as SandboxStats
from gateway.client.sandboxes import SandboxTransition as SandboxTransition
from gateway.client.sandboxes import Snapshot as Snapshot
from gateway.client.threads import Attachment as Attachment
from gateway.client.threads import Thread as Thread
from gateway.client.threads import ThreadMessage as ThreadMessage
from gateway.client.usage import Usage as Usage
from gateway.client.usage import UsageTotal as UsageTotal
from gateway.errors import AirlockError as AirlockError
from gateway.errors import AlreadyResolved as AlreadyResolved
from gateway.errors import ApprovalPending as ApprovalPending
from gateway.errors import Cancelled as Cancelled
from gateway.errors import ClientClosed as ClientClosed
from gateway.errors import Conflict as Conflict
from gateway.errors import DeadlineExceeded as DeadlineExceeded
from gateway.errors import EditRefused as EditRefused
from gateway.errors import Exhausted as Exhausted
from gateway.errors import InProgress as InProgress
from gateway.errors import InputGap as InputGap
from gateway.errors import InputNotTaken as InputNotTaken
from gateway.errors import Internal as Internal
from gateway.errors import InvalidArgument as InvalidArgument
from gateway.errors import InvalidPath as InvalidPath
from gateway.errors import IsADirectory as IsADirectory
from gateway.errors import NoSpace as NoSpace
from gateway.errors import NotADirectory as NotADirectory
from gateway.errors import NotFound as NotFound
from gateway.errors import OtherEngine as OtherEngine
from gateway.errors import Overloaded as Overloaded
from gateway.errors import PermissionDenied as PermissionDenied
from gateway.errors import PolicyChanged as PolicyChanged
from gateway.errors import PolicyInvalid as PolicyInvalid
from gateway.errors import ProcessEnded as ProcessEnded
from gateway.errors import QuotaExceeded as QuotaExceeded
from gateway.errors import RequestIdReused as RequestIdReused
from gateway.errors import SandboxBusy as SandboxBusy
from gateway.errors import ScopeMissing as ScopeMissing
from gateway.errors import StartFailed as StartFailed
from gateway.errors import ThreadBusy as ThreadBusy
from gateway.errors import TooLarge as TooLarge
from gateway.errors import Unauthenticated as Unauthenticated
from gateway.errors import Unavailable as Unavailable
from gateway.errors import WorkspaceNotSaved as WorkspaceNotSaved
from gateway.errors import WrongEventLoop as WrongEventLoop
