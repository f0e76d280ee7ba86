"""`airlock tenant`: the tenants of a gateway and what is stored of them. The key must be an operator's."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.rows import Rows
from gateway.cli.slow_work import SlowWork
from gateway.cli.terminal import DEFAULT_ADDRESS, EXIT_USAGE, Address, Json, Key, fail, out, print_json, run_client

if TYPE_CHECKING:
    from gateway.client.admin import ErasedTenant, TenantInfo

app = typer.Typer(help="Tenants of a gateway; the key must be an operator's.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the tenant.")]


@app.command("list")
def list_(*, address: Address = DEFAULT_ADDRESS, key: Key = "", as_json: Json = False) -> None:
    """List the tenants of the configuration."""

    async def work() -> list[TenantInfo]:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return [one async for one in airlock.tenants()]

    found = run_client(work(), as_json=as_json)
    if as_json:
        print_json([{"name": one.name, "policy_version": one.policy_version} for one in found])
        return
    out.print(Rows(("name", "policy"), [(one.name, one.policy_version) for one in found]))


@app.command()
def show(name: Name, *, address: Address = DEFAULT_ADDRESS, key: Key = "", as_json: Json = False) -> None:
    """Say what is stored of a tenant, also of one that is not configured any more."""

    async def work() -> TenantInfo:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return await airlock.tenant(name)

    found = run_client(work(), as_json=as_json)
    if as_json:
        print_json(asdict(found))
        return
    out.print(f"{found.name}: policy {found.policy_version or 'none'}", markup=False)
    out.print(Rows(("table", "rows"), [(stored, f"{found.stored[stored]:,}") for stored in sorted(found.stored)]))


@app.command()
def delete(
    name: Name,
    *,
    audit: Annotated[bool, typer.Option("--audit", help="Its audit too.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    address: Address = DEFAULT_ADDRESS,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Remove all that is stored of a tenant that is not configured any more; exits 1 if anything is left."""
    if not yes:
        if as_json:
            fail("nobody can be asked with --json: say --yes", EXIT_USAGE, as_json=True)
        typer.confirm(
            f"Remove all runs, threads, files, keys{' and the audit' if audit else ''} of {name}?", abort=True
        )

    async def work() -> ErasedTenant:
        from gateway.client import Client

        async with Client(address, key) as airlock:
            return await airlock.delete_tenant_data(name, audit=audit)

    with SlowWork(f"deleting what is stored of {name}"):
        erased = run_client(work(), as_json=as_json)
    kept = {"audit_records", "audit_heads"} if not audit else set()
    left = {table: rows for table, rows in erased.left.items() if rows and table not in kept}
    if as_json:
        print_json(asdict(erased))
    else:
        removed = sum(erased.removed.values())
        out.print(f"removed {removed:,} rows and {erased.workspaces_removed:,} workspaces; left: {left or 'nothing'}")
        out.print(f"the operators' audit says so in record {erased.audit_sequence}")
    if left:
        raise typer.Exit(1)
