"""`airlock mcp`: tools for MCP clients, and the MCP servers of agents."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.command import BackendCli, Commands, GatewayCli, InThread, Yes
from gateway.cli.printable import Rows, one_line
from gateway.cli.terminal import out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airlock.admin import McpServerPins

app = Commands(help="The Model Context Protocol: tools for clients that start a process, and MCP servers of agents.")
pins = Commands(
    help="Which tools of MCP servers agents are offered, in the database of a configuration or, with --address, on a "
    "gateway."
)
app.add_typer(pins, name="pins")
Server = Annotated[str, typer.Argument(metavar="SERVER", help="Name of the server in the agent's configuration.")]
Tenant = Annotated[str, typer.Option(help="Tenant of the agent.")]
Agent = Annotated[str, typer.Option(help="Agent whose server it is.")]


@app.command()
async def stdio(cli: GatewayCli, *, thread: InThread = "default") -> None:
    """Serve the tools of a gateway over standard input and output, for an MCP client that starts this as a process.

    A gateway with an HTTP listener needs no process: its clients connect to http://HOST:PORT/mcp.
    """
    from gateway.mcp.stdio import serve_stdio

    await cli.airlock.list_tools()  # a client that starts a process shows its error output when it exits, and not later
    await serve_stdio(cli.airlock, thread)


@pins.command("list")
async def list_(
    cli: BackendCli,
    server: Annotated[
        str,
        typer.Argument(metavar="[SERVER]", help="Show only this server, with whole descriptions and schemas."),
    ] = "",
    *,
    tenant: Tenant = "default",
    agent: Annotated[str, typer.Option(help="Filter by agent.")] = "",
) -> None:
    """List the tools of MCP servers as the gateway saw them, and whether they were accepted.

    A model reads the descriptions, and the server wrote them: look for instructions in them before you accept them.
    """
    async with cli.admin() as admin:
        found = await admin.mcp_pins(tenant, agent=agent, server=server)
    cli.show(found, lambda servers: _show_all(servers, whole=bool(server)))


@pins.command()
async def accept(
    cli: BackendCli,
    server: Server,
    digest: Annotated[str, typer.Argument(metavar="DIGEST", help="Digest that `airlock mcp pins list` prints.")],
    *,
    tenant: Tenant = "default",
    agent: Agent = "default",
) -> None:
    """Offer the agent the tools that `airlock mcp pins list` shows. Refused if the server has shown others since."""
    async with cli.admin() as admin:
        found = await admin.accept_mcp_pins(tenant, server, digest, agent=agent)
    names = ", ".join(tool.name for tool in found.tools) or "none"
    cli.show(found, f"accepted the tools of {found.server} for agent {found.agent}: {names}")


@pins.command()
def remove(
    cli: BackendCli, server: Server, *, tenant: Tenant = "default", agent: Agent = "default", yes: Yes = False
) -> None:
    """Stop offering the tools of a server, as if the gateway had never seen it."""
    cli.confirm(f"Forget which tools of {server} were accepted for agent {agent}?", yes=yes)

    async def removed() -> McpServerPins:
        async with cli.admin() as admin:
            return await admin.remove_mcp_pins(tenant, server, agent=agent)

    found = cli.wait(removed())
    cli.show(found, f"removed the pins of {found.server} for agent {found.agent}")


def _show_all(servers: Sequence[McpServerPins], *, whole: bool) -> None:
    if not servers:
        out.print("no MCP server was seen yet: the first run of its agent, or the first call of its tools, starts it")
    for one in servers:
        accepted = f", accepted by {one.accepted_by}" if one.accepted_by else ""
        out.print(f"agent {one.agent}, server {one.server}: {one.status}{accepted}", style="bold")
        out.print(f"  digest {one.digest}")
        for left_out in one.left_out:
            out.print(f"  left out: {one_line(left_out)}", style="yellow")
        if not whole:
            rows = [(tool.status, f"{one.server}/{tool.name}", one_line(tool.description, 80)) for tool in one.tools]
            out.print(Rows(("status", "tool", "description"), rows))
            continue
        for tool in one.tools:
            out.print(f"\n{one.server}/{tool.name}: {tool.status}", style="bold")
            out.print(tool.description)
            out.print(json.dumps(tool.parameters, indent=2), style="dim")
