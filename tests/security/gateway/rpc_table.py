"""Every RPC of the API: the scope it needs, a request with ids in it, and what a stranger to those ids reads.

This is written down a second time on purpose: a servicer that asks for less, or an RPC that is not here, fails it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.message import Message
from grpc import StatusCode

from airlock.v1 import admin_service_pb2 as admin
from airlock.v1 import approval_service_pb2 as approval
from airlock.v1 import audit_service_pb2 as audit
from airlock.v1 import process_service_pb2 as process
from airlock.v1 import run_service_pb2 as run
from airlock.v1 import sandbox_service_pb2 as sandbox
from airlock.v1 import thread_service_pb2 as thread
from airlock.v1 import tool_service_pb2 as tool
from airlock.v1 import usage_service_pb2 as usage
from airlock.v1 import workspace_service_pb2 as workspace


@dataclass(frozen=True)
class Ids:
    """Ids of one tenant's things, or of none's."""

    tenant: str
    thread: str
    run_id: str
    approval_id: str
    grant_id: str
    process_id: str
    key_id: str
    request_id: str
    snapshot_id: str

    def hidden(self, text: str) -> str:
        """Return a text without these ids."""
        for name, value in vars(self).items():
            # "default" is a word as well.
            text = text.replace(f"'{value}'" if name == "tenant" else value, f"<{name}>")
        return text


Requests = Message | Sequence[Message]


@dataclass(frozen=True)
class Rpc:
    """An RPC. `stranger` is what another tenant's credential of the right scope gets; with `makes` it makes its own.

    An operator's credential may need another scope, `of_operators`.
    """

    scope: str
    request: Callable[[Ids], Requests]
    stranger: StatusCode = StatusCode.NOT_FOUND
    makes: bool = False
    of_operators: str = ""


OK, DENIED, INVALID = StatusCode.OK, StatusCode.PERMISSION_DENIED, StatusCode.INVALID_ARGUMENT
_CALL = json.dumps({"path": "/workspace"})


def _call(ids: Ids) -> tool.CallToolRequest:
    return tool.CallToolRequest(thread=ids.thread, name="ls", arguments_json=_CALL)


def _program(ids: Ids) -> process.Program:
    return process.Program(thread=ids.thread, argv=["true"])


def _of(kind: Callable[..., Message], **fields: str) -> Callable[[Ids], Message]:
    """Return what makes a request whose fields are taken from the ids by their names there."""
    return lambda ids: kind(**{field: getattr(ids, name) for field, name in fields.items()})


_THREAD = {"thread": "thread"}
_PROCESS = {"thread": "thread", "id": "process_id"}
RPCS: Mapping[str, Rpc] = {
    # For tenants all of it is PERMISSION_DENIED; for operators there are no strangers.
    "AdminService/ListTenants": Rpc("operate", _of(admin.ListTenantsRequest), DENIED),
    "AdminService/GetTenant": Rpc("operate", _of(admin.GetTenantRequest, tenant="tenant"), DENIED),
    "AdminService/DeleteTenantData": Rpc("operate", _of(admin.DeleteTenantDataRequest, tenant="tenant"), DENIED),
    "AdminService/CreateKey": Rpc("operate", _of(admin.CreateKeyRequest, tenant="tenant"), DENIED),
    "AdminService/ListKeys": Rpc("operate", _of(admin.ListKeysRequest, tenant="tenant"), DENIED),
    "AdminService/RevokeKey": Rpc("operate", _of(admin.RevokeKeyRequest, key_id="key_id"), DENIED),
    "AdminService/RotateKey": Rpc("operate", _of(admin.RotateKeyRequest, key_id="key_id"), DENIED),
    "AdminService/GetPolicy": Rpc("operate", _of(admin.GetPolicyRequest, tenant="tenant"), DENIED),
    "AdminService/ApplyPolicy": Rpc(
        "operate", lambda ids: admin.ApplyPolicyRequest(tenant=ids.tenant, text="version: 1\n"), DENIED
    ),
    "AdminService/ListPolicyChanges": Rpc("operate", _of(admin.ListPolicyChangesRequest, tenant="tenant"), DENIED),
    "AdminService/ListMcpPins": Rpc("operate", _of(admin.ListMcpPinsRequest, tenant="tenant"), DENIED),
    "AdminService/AcceptMcpPins": Rpc(
        "operate",
        lambda ids: admin.AcceptMcpPinsRequest(tenant=ids.tenant, agent="default", server="a", digest="b"),
        DENIED,
    ),
    "AdminService/RemoveMcpPins": Rpc(
        "operate", lambda ids: admin.RemoveMcpPinsRequest(tenant=ids.tenant, agent="default", server="a"), DENIED
    ),
    "ApprovalService/ListApprovals": Rpc(
        "approve", _of(approval.ListApprovalsRequest, thread="thread", run_id="run_id"), OK
    ),
    "ApprovalService/GetApproval": Rpc("approve", _of(approval.GetApprovalRequest, approval_id="approval_id")),
    "ApprovalService/WatchApprovals": Rpc("approve", _of(approval.WatchApprovalsRequest), OK),
    "ApprovalService/ResolveApproval": Rpc(
        "approve",
        lambda ids: approval.ResolveApprovalRequest(approval_id=ids.approval_id, answer=approval.ANSWER_DENY),
    ),
    "ApprovalService/ListGrants": Rpc("approve", _of(approval.ListGrantsRequest, **_THREAD), OK),
    "ApprovalService/RevokeGrant": Rpc("approve", _of(approval.RevokeGrantRequest, grant_id="grant_id")),
    "AuditService/QueryAudit": Rpc("audit", _of(audit.QueryAuditRequest, tenant="tenant")),
    "AuditService/TailAudit": Rpc("audit", _of(audit.TailAuditRequest, tenant="tenant")),
    "AuditService/VerifyAudit": Rpc("audit", _of(audit.VerifyAuditRequest, tenant="tenant")),
    "ProcessService/RunProgram": Rpc(
        "tool",
        lambda ids: process.RunProgramRequest(run=process.RunProgram(program=_program(ids))),
        OK,
        makes=True,
    ),
    "ProcessService/StartProcess": Rpc(
        "tool", lambda ids: process.StartProcessRequest(program=_program(ids), id=ids.process_id), OK, makes=True
    ),
    "ProcessService/ListProcesses": Rpc("tool", _of(process.ListProcessesRequest, **_THREAD), OK),
    "ProcessService/ReadProcess": Rpc("tool", _of(process.ReadProcessRequest, **_PROCESS)),
    "ProcessService/WriteProcess": Rpc(
        "tool", lambda ids: process.WriteProcessRequest(thread=ids.thread, id=ids.process_id, data=b"x")
    ),
    "ProcessService/ResizeProcess": Rpc(
        "tool",
        lambda ids: process.ResizeProcessRequest(
            thread=ids.thread, id=ids.process_id, size=process.WindowSize(columns=80, rows=24)
        ),
    ),
    "ProcessService/SignalProcess": Rpc(
        "tool", lambda ids: process.SignalProcessRequest(thread=ids.thread, id=ids.process_id, signal=15)
    ),
    "ProcessService/KillStrays": Rpc("tool", _of(process.KillStraysRequest, **_THREAD), OK),
    "ProcessService/WaitProcess": Rpc("tool", _of(process.WaitProcessRequest, **_PROCESS)),
    "ProcessService/RemoveProcess": Rpc("tool", _of(process.RemoveProcessRequest, **_PROCESS)),
    "RunService/StartRun": Rpc("run", lambda ids: run.StartRunRequest(task="x", thread=ids.thread), OK, makes=True),
    "RunService/WatchRun": Rpc("run", lambda ids: run.WatchRunRequest(run_id=ids.run_id, from_sequence=1)),
    "RunService/GetRun": Rpc("run", _of(run.GetRunRequest, run_id="run_id")),
    "RunService/ListRuns": Rpc("run", _of(run.ListRunsRequest, **_THREAD), OK),
    "RunService/CancelRun": Rpc("run", _of(run.CancelRunRequest, run_id="run_id")),
    "SandboxService/ListSandboxes": Rpc("tool", _of(sandbox.ListSandboxesRequest), OK),
    "SandboxService/GetSandbox": Rpc("tool", _of(sandbox.GetSandboxRequest, **_THREAD)),
    "SandboxService/StopSandbox": Rpc("tool", _of(sandbox.StopSandboxRequest, **_THREAD)),
    "SandboxService/CreateSandbox": Rpc("tool", _of(sandbox.CreateSandboxRequest, **_THREAD), OK, makes=True),
    "SandboxService/ResumeSandbox": Rpc("tool", _of(sandbox.ResumeSandboxRequest, **_THREAD)),
    "SandboxService/DeleteSandbox": Rpc("files", _of(sandbox.DeleteSandboxRequest, **_THREAD)),
    "SandboxService/GetSandboxStats": Rpc("tool", _of(sandbox.GetSandboxStatsRequest, **_THREAD)),
    "SandboxService/WatchSandboxStats": Rpc("tool", _of(sandbox.WatchSandboxStatsRequest, **_THREAD)),
    "SandboxService/ListSandboxTransitions": Rpc("tool", _of(sandbox.ListSandboxTransitionsRequest, **_THREAD)),
    "SandboxService/WatchSandboxTransitions": Rpc("tool", _of(sandbox.WatchSandboxTransitionsRequest, **_THREAD)),
    "SandboxService/CreateSnapshot": Rpc("files", _of(sandbox.CreateSnapshotRequest, **_THREAD)),
    "SandboxService/ListSnapshots": Rpc("files", _of(sandbox.ListSnapshotsRequest, **_THREAD)),
    "SandboxService/GetSnapshot": Rpc("files", _of(sandbox.GetSnapshotRequest, snapshot_id="snapshot_id")),
    "SandboxService/DeleteSnapshot": Rpc("files", _of(sandbox.DeleteSnapshotRequest, snapshot_id="snapshot_id")),
    "SandboxService/RestoreSnapshot": Rpc("files", _of(sandbox.RestoreSnapshotRequest, snapshot_id="snapshot_id")),
    # It needs run as well, which credentials of one scope lack; tests/integration/gateway/test_forks.py has a stranger.
    "SandboxService/ForkThread": Rpc(
        "files",
        lambda ids: sandbox.ForkThreadRequest(thread=ids.thread, new_thread="forked"),
        StatusCode.PERMISSION_DENIED,
    ),
    "SandboxService/ForwardPort": Rpc(
        "tool", lambda ids: sandbox.ForwardPortRequest(forward=sandbox.ForwardPort(thread=ids.thread, port=1))
    ),
    "ThreadService/ListThreads": Rpc("run", _of(thread.ListThreadsRequest, name_prefix="thread"), OK),
    "ThreadService/GetThread": Rpc("run", _of(thread.GetThreadRequest, **_THREAD)),
    "ThreadService/ListMessages": Rpc("run", _of(thread.ListMessagesRequest, **_THREAD)),
    "ThreadService/SetThreadMetadata": Rpc(
        "run", lambda ids: thread.SetThreadMetadataRequest(thread=ids.thread, remove=["a"]), OK, makes=True
    ),
    "ThreadService/DeleteThread": Rpc("run", _of(thread.DeleteThreadRequest, **_THREAD)),
    "ToolService/ListTools": Rpc("tool", _of(tool.ListToolsRequest), OK),
    "ToolService/CallTool": Rpc("tool", _call, OK, makes=True),
    "ToolService/StreamToolCall": Rpc("tool", lambda ids: tool.StreamToolCallRequest(call=_call(ids)), OK, makes=True),
    "ToolService/RunCallerTool": Rpc(
        "tool",
        lambda ids: [
            tool.RunCallerToolRequest(
                call=tool.CallerToolCall(thread=ids.thread, name="refund", arguments_json='{"amount": 1}')
            )
        ],
        OK,
        makes=True,
    ),
    "ToolService/CancelToolCall": Rpc("tool", _of(tool.CancelToolCallRequest, request_id="request_id")),
    "UsageService/GetUsage": Rpc("run", _of(usage.GetUsageRequest, tenant="tenant"), of_operators="operate"),
    "WorkspaceService/ReadFile": Rpc(
        "files", lambda ids: workspace.ReadFileRequest(thread=ids.thread, path="/workspace/mine"), makes=True
    ),
    "WorkspaceService/WriteFile": Rpc(
        "files",
        lambda ids: [
            workspace.WriteFileRequest(thread=ids.thread, path="/workspace/yours", data=b"x"),
            workspace.WriteFileRequest(end=True),
        ],
        OK,
        makes=True,
    ),
    "WorkspaceService/ListFiles": Rpc("files", _of(workspace.ListFilesRequest, **_THREAD), OK, makes=True),
    "WorkspaceService/StatFile": Rpc(
        "files", lambda ids: workspace.StatFileRequest(thread=ids.thread, path="/workspace/mine"), makes=True
    ),
    "WorkspaceService/RemoveFile": Rpc(
        "files", lambda ids: workspace.RemoveFileRequest(thread=ids.thread, path="/workspace/mine"), makes=True
    ),
    "WorkspaceService/MakeDirectory": Rpc(
        "files", lambda ids: workspace.MakeDirectoryRequest(thread=ids.thread, path="/workspace/made"), OK, makes=True
    ),
}
