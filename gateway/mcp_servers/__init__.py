"""The MCP servers of agents: their tools, offered to the model and called on the tool path.

    servers, places                              the tools that an agent is offered, and the sessions behind them
    connecting                                   how sessions begin
    session, traffic                             one session with one server; what a server may send, and how fast
    process_transport, door_transport            its messages: of a program in the thread's sandbox, or over HTTP
    definitions, arguments, results              what a server says of a tool; what it is sent; what it gives back
    schema_check                                 whether arguments fit a server's schema, in bounded time
    pins                                         which definitions were accepted

Nothing that a server says is trusted, and it gets nothing that tool code of the same thread could not have had: a
program is started as any command of a service is, under policy; HTTP passes the network door of the thread's sandbox.

Start at `servers.py`. Imports gateway layers below 13, agent and sandbox. The package `mcp` is imported on first use.
"""
