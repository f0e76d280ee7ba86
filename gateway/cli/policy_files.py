"""Policy files as command arguments; a file that cannot be read ends the command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.terminal import fail

if TYPE_CHECKING:
    from gateway.config.config import Config
    from gateway.policy.document import PolicyDocument
    from gateway.policy.judge import Policy
    from gateway.policy.loading import PolicyText

File = Annotated[Path, typer.Argument(metavar="FILE", help="Policy file.")]
OperatorFile = Annotated[
    Path | None, typer.Option("--operator", metavar="FILE", help="Policy file of the operator's layer.")
]
ConfigFile = Annotated[Path, typer.Option("--config", metavar="FILE", help="Configuration file.")]
DEFAULT_CONFIG = Path("airlock.yaml")


def read(file: Path, operator: PolicyDocument | None = None) -> PolicyText:
    """Read a policy file, even if its examples fail."""
    from gateway.policy import PolicyError
    from gateway.policy.loading import LIMIT_BYTES, read_policy

    try:
        with file.open("rb") as opened:
            return read_policy(opened.read(LIMIT_BYTES + 1).decode(), str(file), operator)
    except PolicyError as error:
        first = error.errors[0]
        more = f" (and {len(error.errors) - 1} more)" if len(error.errors) > 1 else ""
        fail(f"{file} does not load: line {first.line}: {first.text}{more}; see `airlock policy check {file}`")
    except UnicodeDecodeError:
        fail(f"{file} is not UTF-8 text")


def read_operator(file: Path | None) -> PolicyDocument | None:
    """Read the operator's layer if there is a file."""
    return None if file is None else read(file).document


def compiled(document: PolicyDocument, operator: PolicyDocument | None) -> Policy:
    """Return the policy that both layers form."""
    from gateway.policy.judge import Policy

    return Policy(document) if operator is None else Policy(document, operator)


async def stored_layers(config: Config, *layers: str) -> dict[str, PolicyDocument]:
    """Return the policies in force in a configuration's database, by layer."""
    from gateway.cli.database import local_database, opened_policies
    from gateway.policy_versions.policies import stored_document

    async with local_database(config) as database, opened_policies(database) as policies:
        changes = {layer: policies.change_in_force(layer) for layer in layers}
        texts = {layer: await policies.store.text(change.digest) for layer, change in changes.items() if change}
    return {layer: stored_document(text) for layer, text in texts.items()}
