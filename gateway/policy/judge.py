"""The judge: a compiled policy that says allow, ask or deny of one tool call.

A call is cut into parts (parts.py): the path of a file tool; of a command line each simple command, each redirect, and
each file that a known program names. Every part is judged alone by all rules of both layers that match it; the
strictest wins, over rules and over parts; a part that nothing allows is denied. So the order of rules never changes a
verdict. A file that a command opens is judged as read_file, write_file or ls of it; rules for execute that have no argv
are about these too. Hosts in a line are not judged: each connection is, when it is made.

An opaque command line gets what the policy says for opaque, except that
  - a deny rule that matches a part seen in it denies it, and an ask rule asks about it where it would be allowed;
  - a rule without argv that allows execute allows it too, unless some rule denies or asks about particular commands
    or files: whether that one is broken cannot be known, so the policy's word on opaque holds.

With `enforcement: kernel` the sandbox's kernel holds the rules on files for all that a command starts (file_rules.py).
Then a command line is judged for its programs and their arguments alone.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import islice

from agent.tools.paths import WORKSPACE
from gateway.policy.conditions import REQUESTS, Call, CompiledRule, Hit, hit
from gateway.policy.cover import atoms
from gateway.policy.decision import INVALID_ARGUMENTS, TOO_COMPLEX, Decision, Effect, Facts, Layer
from gateway.policy.document import PolicyDocument, Rule
from gateway.policy.fields import CONNECT, EXECUTE_PYTHON, FILE_TOOLS
from gateway.policy.file_rules import file_rules_of
from gateway.policy.globs import Budget, TooComplex, compile_glob, may_meet, tree_glob
from gateway.policy.hosts import HostPattern, compile_host
from gateway.policy.layers import ScopedRule, effective_document, scoped_in_both, scoped_rules
from gateway.policy.parts import Part, cut, shown
from gateway.policy.recent import Recent
from gateway.policy.rules import Found, RuleIndex, ToolRules, compile_rules
from gateway.policy.ruling import WHOLE_LINE, Judged, Ruling
from gateway.policy.shell_line import START
from gateway.support.hosts import address_of
from sandbox.file_rules import FileRules

# The file systems of a sandbox in which tool code can make names.
_WRITABLE_ROOTS = (WORKSPACE, "/tmp", "/dev/shm")  # noqa: S108 - names in the sandbox
_TOOLS_OF_COMMANDS = ("execute", "read_file", "write_file", "ls")
_CONDITIONS = 10  # comparisons that a rule's other conditions are worth
_TOO_COMPLEX_REASON = (
    "the command line is too complex to be compared with all rules of the policy: make several calls, with fewer "
    "commands, options and patterns in each"
)
_LIMIT_ALLOWED = 20
_LIMIT_RULES = 1_000_000
"""More than a layer can have: places of the tenant's rules come after those of the operator's."""


Grants = RuleIndex
"""Rules of a thread or a run that answer what a policy asks. They never undo a deny."""


def compile_grants(rules: Iterable[Rule]) -> Grants:
    """Return the grants that narrow rules make; whatever effect they have, they allow."""
    allowing = (rule.model_copy(update={"effect": "allow", "mode": "enforce"}) for rule in rules)
    return compile_rules(allowing, first=2 * _LIMIT_RULES)


class Policy:
    """A policy ready to judge: the tenant's rules and the operator's, both of which apply.

    `document` has the sections that hold, the strictest of both layers; `version` is a short name of the content of
    both, `digest` the whole SHA-256 in hex. Without `judges_effects` the files that programs name are not
    judged, only the programs and the redirects.
    """

    def __init__(
        self, document: PolicyDocument, operator: PolicyDocument | None = None, *, judges_effects: bool = True
    ) -> None:
        self.tenant_document = document
        self.operator_document = operator
        self._judges_effects = judges_effects
        self._allowed_of: dict[str, tuple[str, ...]] = {}
        self._layers: tuple[RuleIndex, ...] = (_index(document, "tenant"),)
        if operator is not None:
            shared = _OPERATOR_RULES.get(digest_of(operator), lambda: _index(operator, "operator"))
            self._layers = (shared, *self._layers)

    @property
    def _rules(self) -> list[ScopedRule]:
        return scoped_in_both(self.tenant_document, self.operator_document)

    @cached_property
    def document(self) -> PolicyDocument:
        return effective_document(self.tenant_document, self.operator_document)

    @cached_property
    def digest(self) -> str:
        return digest_of(self.tenant_document, self.operator_document)

    @property
    def version(self) -> str:
        return f"policy_{self.digest[:12]}"

    @cached_property
    def file_rules(self) -> FileRules | None:
        """What commands may read and write, for the sandbox's kernel to enforce; None leaves it to reading the line."""
        return file_rules_of(self._rules) if self.document.enforcement == "kernel" else None

    @cached_property
    def tells_paths_apart(self) -> bool:
        """Whether a rule of a file tool treats two paths of one writable file system differently.

        Then a hard link, which tool code can make within a file system, could give a file the name of the other kind.
        """
        return any(_tells_apart(placed.rule) for placed in self._rules)

    @cached_property
    def connects(self) -> bool:
        """Whether a rule in force lets some connection pass, or asks about it: without one there is no network."""
        return bool(self._letting_pass(CONNECT))

    def connects_to(self, host: str) -> bool:
        """Return whether such a rule is about a canonical host; its other conditions may still be against it."""
        hosts = [rule.hosts for rule in self._letting_pass(CONNECT)]
        return any(named is None or any(compile_host(one).names(host) for one in named) for named in hosts)

    @cached_property
    def runs_python(self) -> bool:
        """Whether a rule in force lets some call of execute_python pass, or asks about it."""
        return bool(self._letting_pass(EXECUTE_PYTHON))

    def _letting_pass(self, tool: str) -> list[Rule]:
        rules = (placed.rule for placed in self._rules)
        return [rule for rule in rules if tool in rule.tools and rule.effect != "deny" and rule.mode == "enforce"]

    @cached_property
    def _hosts_of_requests(self) -> list[list[HostPattern] | None]:
        """The hosts of each rule about requests, None for all."""
        rules = (placed.rule for placed in self._rules if CONNECT in placed.rule.tools)
        hosts = (rule.hosts for rule in rules if not rule.all_given.isdisjoint(REQUESTS))
        return [None if named is None else [compile_host(one) for one in named] for named in hosts]

    def judges_requests(self, host: str | None = None, port: int = 0) -> bool:
        """Return whether a rule is about methods or paths, and may be about a canonical host if one is given."""
        hosts = self._hosts_of_requests
        return any(host is None or to is None or any(one.matches(host, port) for one in to) for to in hosts)

    def names_address(self, address: str, port: int, facts: Facts | None = None) -> bool:
        """Return whether the operator allows this very address, or a network that it is in, and no rule denies it.

        A rule without hosts names none. False for a text that is no address.
        """
        parts = cut(CONNECT, {"host": address, "port": port}).parts
        if self.operator_document is None or not parts or address_of(parts[0].host or "") is None:
            return False
        part, call = parts[0], Call(CONNECT, {}, facts or Facts())

        def effects(found: Found) -> set[Effect]:
            hits = (hit(rule, named, part, call) for rule, named in found if not rule.shadow)
            return {one.effect for one in hits if one is not None and one.surely}

        if any("deny" in effects(layer.of(CONNECT).matching(part)) for layer in self._layers):
            return False
        return "allow" in effects(self._layers[0].of(CONNECT).by_host(part))

    def denies_address(self, host: str, address: str, port: int, facts: Facts | None = None) -> str:
        """Return the deny rule about an address that a host resolved to, or about its network; "" for none.

        The rule's other conditions are about the host as it was requested: an `unless` may name it. A rule about
        requests denies all of them, since none is known yet.
        """
        asked, led = (cut(CONNECT, {"host": one, "port": port}).parts for one in (host, address))
        if not asked or not led or address_of(led[0].host or "") is None:
            return ""
        call = Call(CONNECT, {}, facts or Facts())
        for layer in self._layers:
            for rule, named in layer.of(CONNECT).by_host(led[0]):
                if rule.effect == "deny" and not rule.shadow and hit(rule, named, asked[0], call) is not None:
                    return rule.id
        return ""

    def judge(
        self,
        tool: str,
        arguments: Mapping[str, object],
        facts: Facts | None = None,
        grants: Grants | None = None,
    ) -> Decision:
        """Judge a call on its final arguments. Never raises; what cannot be judged is denied."""
        kernel = self.file_rules is not None
        parts = cut(tool, arguments, effects=self._judges_effects and not kernel, redirects=not kernel)
        if parts.invalid is not None:
            reason = shown(f"{tool} was not judged: {parts.invalid}")
            return Decision("deny", INVALID_ARGUMENTS, reason, self.version)
        call = Call(tool, arguments, facts or Facts())
        ruling = Ruling(tool, opaque=parts.opaque, opaque_effect=self.document.opaque, allowed=self._allowed)
        budget = Budget()
        try:
            ruling.judged.extend(self._judged(part, call, grants, budget) for part in parts.parts)
            if parts.opaque is not None or not all(part.is_known for part in parts.parts):
                ruling.line = self._judged(Part("line", WHOLE_LINE, "execute", of_command=True), call, None, budget)
                ruling.narrows = self._narrows
        except TooComplex:
            return Decision("deny", TOO_COMPLEX, _TOO_COMPLEX_REASON, self.version)
        decision = ruling.conclude()
        would_be = ruling.conclude(shadow=True) if self._has_shadow else decision
        changed = (would_be.verdict, would_be.rule) if would_be.verdict != decision.verdict else None
        return replace(decision, policy_version=self.version, trace=ruling.trace(), would_be=changed)

    def _allowed(self, tool: str) -> tuple[str, ...]:
        """Return what rules allow of a tool as they are written: argv, paths or hosts."""
        if tool not in self._allowed_of:
            rules = (placed.rule for placed in self._rules if tool in placed.rule.tools)
            allowing = (rule for rule in rules if rule.effect == "allow" and rule.mode == "enforce")
            pieces = (atom.shown for rule in allowing for atom in atoms(rule) if atom.tool == tool)
            shown = (piece.removeprefix(f"{tool} ") for piece in pieces)
            self._allowed_of[tool] = tuple(dict.fromkeys(islice(shown, _LIMIT_ALLOWED)))
        return self._allowed_of[tool]

    def _judged(self, part: Part, call: Call, grants: Grants | None, budget: Budget) -> Judged:
        hits: dict[tuple[int, str], Hit] = {}
        narrowed: set[bool] = set()
        needs_allow, is_known = part.needs_allow, part.is_known
        for rules, seen in self._about(part):
            if not is_known and seen.tool == part.tool:
                narrowed |= rules.narrows
            for rule, named in rules.matching(seen, budget):
                if not needs_allow and rule.effect == "allow" and rule.by_names:
                    continue
                budget.spend(1 if rule.by_names else _CONDITIONS)
                found = hit(rule, named, seen, call)
                if found is None or (not needs_allow and found.effect == "allow"):
                    continue
                if not is_known and not found.surely:
                    narrowed.add(found.rule.shadow)
                    continue
                key = (found.rule.place, found.effect)
                if key not in hits or (found.surely and not hits[key].surely):
                    hits[key] = found
        asks = any(found.effect == "ask" for found in hits.values())
        granted = _granted(part, call, grants) if grants is not None and asks else None
        in_order = sorted(hits.values(), key=lambda found: found.rule.place)
        return Judged(part, tuple(in_order), granted, frozenset(narrowed))

    def _about(self, part: Part) -> Iterator[tuple[ToolRules, Part]]:
        """Yield the rules that could be about a part, and the part as they see it."""
        for layer in self._layers:
            yield layer.of(part.tool), part
            if part.of_command and part.tool != "execute" and layer.of("execute").general:
                yield layer.of("execute"), replace(part, tool="execute")

    @cached_property
    def _has_shadow(self) -> bool:
        return any(placed.rule.mode == "shadow" for placed in self._rules)

    @cached_property
    def _narrows(self) -> frozenset[bool]:
        tools = _TOOLS_OF_COMMANDS if self.file_rules is None else ("execute",)
        return frozenset(shadow for layer in self._layers for tool in tools for shadow in layer.of(tool).narrows)


def digest_of(document: PolicyDocument, operator: PolicyDocument | None = None) -> str:
    """Return SHA-256 over canonical JSON, in hex; the same content has the same, however the file is laid out."""
    content: object = document.model_dump(mode="json")
    if operator is not None:
        content = {"operator": operator.model_dump(mode="json"), "tenant": content}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


_OPERATOR_RULES: Recent[str, RuleIndex] = Recent(16, lambda _digest, _rules: 1)
"""By the digest of the document: tenants share the rules of one operator. The last 16 are kept."""


def _index(document: PolicyDocument, layer: Layer) -> RuleIndex:
    rules = (placed.rule for placed in scoped_rules(document, layer))
    return compile_rules(rules, layer, first=0 if layer == "operator" else _LIMIT_RULES)


def _granted(part: Part, call: Call, grants: Grants) -> CompiledRule | None:
    """Return the rule of a grant that surely matches a part. Where a command runs elsewhere it is another command."""
    if part.kind == "command" and part.cwd != START:
        return None
    found = (hit(rule, named, part, call) for rule, named in grants.of(part.tool).matching(part))
    return next((one.rule for one in found if one is not None and one.effect == "allow"), None)


def _tells_apart(rule: Rule) -> bool:
    if FILE_TOOLS.isdisjoint(rule.tools):
        return False
    # Globs that could match some files of a writable file system and not others.
    finer = (
        may_meet(compile_glob(glob), tree_glob(root)) and glob not in {"/**", root, f"{root}/**"}
        for condition in (rule, rule.unless)
        for glob in (condition.paths if condition is not None else None) or ()
        for root in _WRITABLE_ROOTS
    )
    return "when" in rule.all_given or any(finer)
