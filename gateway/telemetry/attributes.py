"""Every attribute of a span or a metric: OpenTelemetry's name if its conventions have one, otherwise `airlock.`.

docs/telemetry.md lists the attributes of each span and metric; tests compare them.
"""

from typing import Final

# From the conventions' incubating part; a test compares each with opentelemetry.semconv.
OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
AGENT: Final = "gen_ai.agent.name"
CONVERSATION: Final = "gen_ai.conversation.id"
REQUEST_MODEL: Final = "gen_ai.request.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105 - tokens of a model
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"
ERROR_TYPE: Final = "error.type"
EXIT_CODE: Final = "process.exit.code"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
RPC_SYSTEM: Final = "rpc.system.name"
RPC_METHOD: Final = "rpc.method"
RPC_STATUS: Final = "rpc.response.status_code"

TENANT: Final = "airlock.tenant"
RUN_ID: Final = "airlock.run.id"
RUN_STATUS: Final = "airlock.run.status"
VERDICT: Final = "airlock.verdict"
DIRECTION: Final = "airlock.direction"
RULE: Final = "airlock.rule"
POLICY_VERSION: Final = "airlock.policy.version"
APPROVAL_ID: Final = "airlock.approval.id"
OUTCOME: Final = "airlock.outcome"
SANDBOX_ID: Final = "airlock.sandbox.id"
SANDBOX_STATE: Final = "airlock.sandbox.state"
POOL_STATE: Final = "airlock.sandbox.pool.state"
POOL_CLAIM: Final = "airlock.sandbox.pool.claim"
ACQUIRE_S: Final = "airlock.sandbox.acquire_s"
DISK: Final = "airlock.disk"
HOOK_NAME: Final = "airlock.hook.name"
HOOK_POINT: Final = "airlock.hook.point"
HOOK_DURATION_S: Final = "airlock.hook.duration_s"

HOOK_EVENT: Final = "hook"
"""Each hook that ran is an event of its span: spans would be too many, with twelve hook points a step."""
