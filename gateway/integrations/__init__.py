"""Adapters for other frameworks, each an optional extra over the public client.

    inspect_sandbox.py         a sandbox of inspect-ai
    deepagents.py              a sandbox backend of deepagents
    deepagents_operations.py   what it does on a thread
    openai_agents.py           a sandbox client of the OpenAI Agents SDK
    openai_agents_commands.py  the commands of its sessions
    openai_agents_tools.py     a shell and an editor for its agents that have no sandbox
    pydantic_ai.py             a workspace and toolsets of pydantic-ai
    google_adk.py              an environment and a code executor of google-adk
    strands.py                 a sandbox of strands-agents
    smolagents.py              a Python executor of smolagents
    adapter.py                 what adapters share, and:
    programs.py                programs with an exit code in any case
    os_errors.py               errors as open() raises them

Imports airlock, gateway.client, gateway.errors and agent.tools.paths only. Start at `inspect_sandbox.py`.
"""
