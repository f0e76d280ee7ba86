"""The agents of each tenant, checked when the configuration is read and again with each new policy."""

from collections.abc import Callable, Mapping

from gateway.agents.agents import check
from gateway.config.agent_settings import AgentSettings
from gateway.config.config import Config
from gateway.config.model_settings import ModelSettings
from gateway.errors import Misconfigured
from gateway.policy import PolicyDocument

_UNLIMITED = PolicyDocument(version=1)


def agents_of_all(config: Config) -> Mapping[str, Mapping[str, AgentSettings]]:
    """Return each tenant's agents. A bad one is reported now, not when a run names it.

    What depends on a tenant's policy is checked with the policy. Tenants without settings of their own share theirs.
    """
    shared: Mapping[str, AgentSettings] = {}
    found: dict[str, Mapping[str, AgentSettings]] = {}
    for name, settings in config.tenants.items():
        plain = settings.model is None and not settings.agents
        found[name] = (plain and shared) or _agents(config, name, config.model_of(name))
        shared = found[name] if plain else shared
    return found


def _agents(config: Config, tenant: str, model: ModelSettings) -> Mapping[str, AgentSettings]:
    agents: dict[str, AgentSettings] = {}

    def whole(name: str, agent: AgentSettings) -> None:
        agents[name] = agent.within(model)
        check(agents[name], model, _UNLIMITED)

    each_agent(config, tenant, config.agents_of(tenant), whole)
    return agents


def each_agent(
    config: Config, tenant: str, agents: Mapping[str, AgentSettings], look: Callable[[str, AgentSettings], None]
) -> None:
    """Check each agent of a tenant; Misconfigured lists what is wrong with all of them, and where."""
    problems = []
    for name, agent in agents.items():
        try:
            look(name, agent)
        except Misconfigured as error:
            own = name in config.tenants[tenant].agents
            where = f"tenants.{tenant}.agents" if own else f"for tenant {tenant}: agents"
            problems.append(f"{where}.{name}.{error}")
    if problems:
        raise Misconfigured("; ".join(problems))
