"""Checks that a policy may come into force: it loads, fits the other layer, and every agent can be built with it."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

from gateway.agents.agents import check, each_agent
from gateway.config.agent_settings import AgentSettings
from gateway.config.config import Config
from gateway.errors import Misconfigured
from gateway.policy import Policy, PolicyDocument, PolicyError, load_policy
from gateway.policy.checks import private_hosts
from gateway.policy.file_rules import check_layers
from gateway.policy.loading import LIMIT_BYTES
from gateway.policy.yaml_lines import field_of
from gateway.policy_versions.policies import Policies
from gateway.storage.policy_store import OPERATOR, digest_of_text

Agents = Mapping[str, Mapping[str, AgentSettings]]
"""The agents that each tenant can name."""


def read_policy_file(path: Path, field: str) -> str:
    """Read a policy file; Misconfigured names the problem and the `field` of the configuration."""
    try:
        with path.open("rb") as file:
            data = file.read(LIMIT_BYTES + 1)
        if len(data) > LIMIT_BYTES:
            raise Misconfigured(f"{field}: {path}: larger than {LIMIT_BYTES} bytes")
        return data.decode()
    except OSError as error:
        raise Misconfigured(f"{field}: {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Misconfigured(f"{field}: {path}: not UTF-8 text") from error


class PolicyChecker:
    """Checks policies at one moment; each distinct text is loaded once, for all tenants that have it."""

    def __init__(self, config: Config, agents: Agents) -> None:
        self.agents = agents
        self._config = config
        self._documents: dict[str, PolicyDocument] = {}
        self._together: dict[tuple[int, int, int], Policy] = {}

    def layer(self, tenant: str, text: str, source: str) -> PolicyDocument:
        """Load a layer; Misconfigured lists every problem with its line."""
        digest = digest_of_text(text)
        if digest not in self._documents:
            try:
                self._documents[digest] = load_policy(text, source).tenant_document
            except PolicyError as error:
                whose = f"policy of tenant {tenant}" if tenant != OPERATOR else "operator's policy"
                problems = "\n".join(f"  {source}:{p.line}: {p.text}" for p in error.errors)
                raise Misconfigured(f"the {whose} does not load:\n{problems}") from error
        return self._documents[digest]

    def together(self, tenant: str, own: PolicyDocument, operator: PolicyDocument | None) -> Policy:
        """Combine both layers of a tenant; Misconfigured if they or an agent do not fit the result."""
        key = (id(own), id(operator), id(self.agents[tenant]))
        if key not in self._together:
            wrong = [] if operator is None else list(check_layers(own, operator))
            if wrong:
                problems = "\n".join(f"  {field_of(path)}: {message}" for path, message in wrong)
                raise Misconfigured(
                    f"the policies of tenant {tenant} and of the operator cannot hold together:\n{problems}"
                )
            policy = Policy(own, operator)
            model = self._config.model_of(tenant)

            def fits(_name: str, agent: AgentSettings) -> None:
                check(agent, model, policy.document)

            each_agent(self._config, tenant, self.agents[tenant], fits)
            self._together[key] = policy
        return self._together[key]

    async def check(
        self, tenant: str, text: str, source: str, policies: Policies, executor: Executor | None = None
    ) -> None:
        """Raise Misconfigured if a text may not come into force beside the other layers; loads it in `executor`."""
        run = partial(asyncio.get_running_loop().run_in_executor, executor)
        document = await run(self.layer, tenant, text, source)
        if tenant != OPERATOR:
            policy = await run(self.together, tenant, document, await self._current(OPERATOR, policies, executor))
            self._refuse_image(tenant, policy)
            _refuse_private(tenant, policy)
            return
        for name in self._config.tenants:
            own = await self._current(name, policies, executor)
            if own is not None:
                await run(self.together, name, own, document)

    def _refuse_image(self, tenant: str, policy: Policy) -> None:
        """Raise Misconfigured if no sandbox could be created with the tenant's image.

        The operator's layer is not checked: a restriction comes into force at once, and affected calls fail.
        """
        section = policy.document.sandbox
        refusal = self._config.sandbox.image_rule.refusal(section.image) or section.image_rule.refusal(section.image)
        if refusal is not None:
            raise Misconfigured(f"policy of tenant {tenant}: sandbox.image: {refusal}")

    async def _current(self, tenant: str, policies: Policies, executor: Executor | None) -> PolicyDocument | None:
        """Return one layer in force; None if there is none, or it no longer loads."""
        change = policies.change_in_force(tenant)
        if change is None:
            return None
        if change.digest not in self._documents:
            text = await policies.store.text(change.digest)
            try:
                await asyncio.get_running_loop().run_in_executor(executor, self.layer, tenant, text, change.by)
            except Misconfigured:
                return None
        return self._documents[change.digest]


def _refuse_private(tenant: str, policy: Policy) -> None:
    """Raise Misconfigured for addresses that only the operator may name. His layer is not checked, as with images."""
    wrong = private_hosts(policy.tenant_document, policy.operator_document)
    if problems := "\n".join(f"  {field_of(path)}: {message}" for path, message in wrong):
        raise Misconfigured(f"policy of tenant {tenant}:\n{problems}")
