"""Warns of programs that a policy's rules name and a sandbox's image does not have."""

import logging

from gateway.policy import Policy
from gateway.policy.file_rules import named_programs
from sandbox.errors import SandboxError
from sandbox.protocols import ProgramSpec, Shell
from sandbox.sandbox import Sandbox

log = logging.getLogger(__name__)
# What `enforcement: kernel` needs of an image are the programs that the policy names: prints those that are missing.
_SCRIPT = b'for name in "$@"; do command -v -- "$name" > /dev/null || echo "$name"; done'
_SCRIPT_TIMEOUT_S = 5.0
_SCRIPT_OUTPUT_BYTES = 64 * 1024
_CHECKED_LIMIT = 10_000


async def missing_programs(shell: Shell, policy: Policy) -> list[str]:
    """Return the names of programs in a policy's allow-list that a sandbox does not have. Raises SandboxError."""
    names = [name for name in named_programs(policy.file_rules) if "/" not in name]
    if not names:
        return []
    found = bytearray()

    async def take(_stream: str, data: bytes) -> None:
        found.extend(data)

    argv = [b"/bin/sh", b"-c", _SCRIPT, b"sh", *(name.encode() for name in names)]
    spec = ProgramSpec(argv, timeout_s=_SCRIPT_TIMEOUT_S, output_limit_bytes=_SCRIPT_OUTPUT_BYTES)
    done = await shell.run_program(spec, stdin=None, on_output=take)
    return found.decode(errors="replace").split() if done.outcome == "exited" else []


class ProgramCheck:
    """Warns of missing programs before the first command of a policy version runs in an image."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], None] = {}

    async def check(self, sandbox: Sandbox, policy: Policy) -> None:
        """Log what the image does not have, once. Never raises SandboxError: the command itself tells more."""
        key = sandbox.spec.image, policy.version
        if key in self._known or not named_programs(policy.file_rules):
            return
        self._known[key] = None
        if len(self._known) > _CHECKED_LIMIT:
            del self._known[next(iter(self._known))]
        try:
            missing = await missing_programs(sandbox.shell, policy)
        except SandboxError:
            return
        if missing:
            log.warning(
                "tenant %s: image %s does not have %s, which rules of %s allow: install them in the image, or remove "
                "them from the policy",
                sandbox.spec.tenant,
                sandbox.spec.image,
                ", ".join(missing),
                policy.version,
            )
