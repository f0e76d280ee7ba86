"""`airlock tenant`: list the tenants of a gateway and delete their data. Needs an operator key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.command import Commands, GatewayCli, Yes
from gateway.cli.rows import Rows
from gateway.cli.slow_work import SlowWork
from gateway.cli.terminal import out

if TYPE_CHECKING:
    from gateway.client.admin import ErasedTenant, TenantInfo

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
    cli.show(await cli.airlock.tenant(name), _show)


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
    cli.show(erased, lambda _: _show_erased(erased, left), bad_news=bool(left))


def _show(tenant: TenantInfo) -> None:
    out.print(f"{tenant.name}: policy {tenant.policy_version or 'none'}")
    out.print(Rows(("table", "rows"), [(stored, f"{tenant.stored[stored]:,}") for stored in sorted(tenant.stored)]))


def _show_erased(erased: ErasedTenant, left: dict[str, int]) -> None:
    removed = sum(erased.removed.values())
    out.print(f"removed {removed:,} rows and {erased.workspaces_removed:,} workspaces; left: {left or 'nothing'}")
    out.print(f"recorded in the operators' audit as number {erased.audit_sequence}")
