"""`airlock tenant`: list the tenants of a gateway and delete their data. Needs an operator key."""

from typing import Annotated

import typer

from gateway.cli.command import Commands, GatewayCli, Yes
from gateway.cli.printable import Rows
from gateway.cli.terminal import SlowWork

app = Commands(help="Tenants of a gateway; needs an operator key.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the tenant.")]


@app.command("list")
async def list_(cli: GatewayCli) -> None:
    """List the tenants of the configuration."""
    found = [one async for one in cli.airlock.tenants()]
    document = [{"name": one.name, "policy_version": one.policy_version} for one in found]
    cli.show(document, Rows(("name", "policy"), [(one.name, one.policy_version) for one in found]))


@app.command()
async def show(cli: GatewayCli, name: Name) -> None:
    """Show how much data is stored for a tenant, even one that is no longer configured."""
    found = await cli.airlock.tenant(name)
    rows = [(stored, f"{found.stored[stored]:,}") for stored in sorted(found.stored)]
    cli.show(found, f"{found.name}: policy {found.policy_version or 'none'}", Rows(("table", "rows"), rows))


@app.command()
def delete(
    cli: GatewayCli,
    name: Name,
    *,
    audit: Annotated[bool, typer.Option("--audit", help="Also delete its audit records.")] = False,
    yes: Yes = False,
) -> None:
    """Delete all data of a tenant that is no longer configured. Exits with 1 if anything is left."""
    question = f"Delete all runs, threads, files, keys{' and audit records' if audit else ''} of {name}?"
    cli.confirm(question, yes=yes, to_stderr=False)
    with SlowWork(f"deleting the data of {name}"):
        erased = cli.wait(cli.airlock.delete_tenant_data(name, audit=audit))
    kept = {"audit_records", "audit_heads"} if not audit else set()
    left = {table: rows for table, rows in erased.left.items() if rows and table not in kept}
    removed = f"removed {sum(erased.removed.values()):,} rows and {erased.workspaces_removed:,} workspaces"
    recorded = f"recorded in the operators' audit as number {erased.audit_sequence}"
    cli.show(erased, f"{removed}; left: {left or 'nothing'}", recorded, bad_news=bool(left))
