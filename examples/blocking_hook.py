"""A hook that blocks: a call that names a file with secrets does not run, and the model is told why.

    Agent(model=..., capabilities=[filesystem(files)], hooks=[KeepSecrets()])

It looks at the `path` of a call. A grep over a directory above, or a command, reaches the file all the same: what must
hold whatever is called belongs in the tenant's policy, or does not belong in the workspace.
"""

from fnmatch import fnmatchcase

from agent import AgentState, Hook

SECRETS = ("*/.env", "*/.env.*", "*.pem", "*/id_rsa")


class KeepSecrets(Hook):
    """Blocks each call whose `path` names a secret. A path is absolute and normalised by the time policy judges it.

    Being mandatory it is inherited by subagents, and if it should fail, the call is blocked.
    """

    name = "keep_secrets"
    mandatory = True

    async def before_tool_use(self, state: AgentState) -> AgentState:
        path = (state.current.tool.call.arguments or {}).get("path")
        if isinstance(path, str) and any(fnmatchcase(path, pattern) for pattern in SECRETS):
            return state.block(self.name, "secrets", f"{path} holds secrets; ask for the value you need instead")
        return state
