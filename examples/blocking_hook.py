"""A blocking hook: a call that names a file with secrets does not run, and the model reads the reason.

    Agent(model=..., capabilities=[filesystem(files)], hooks=[KeepSecrets()])

It checks only the `path` of a call. A grep over a parent directory, or a command, can still read the file. Put rules
that must apply to every call into the tenant's policy, and keep secrets out of the workspace.
"""

from fnmatch import fnmatchcase

from agent import AgentState, Hook

SECRETS = ("*/.env", "*/.env.*", "*.pem", "*/id_rsa")


class KeepSecrets(Hook):
    """Blocks each call whose `path` names a secret. The path is already absolute and normalized.

    The hook is mandatory: subagents inherit it, and if it fails, the call is blocked.
    """

    name = "keep_secrets"
    mandatory = True

    async def before_tool_use(self, state: AgentState) -> AgentState:
        path = (state.current.tool.call.arguments or {}).get("path")
        if isinstance(path, str) and any(fnmatchcase(path, pattern) for pattern in SECRETS):
            return state.block(self.name, "secrets", f"{path} contains secrets; ask for the value that you need")
        return state
