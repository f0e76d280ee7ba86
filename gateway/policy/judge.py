"""The judge: a compiled policy that says allow or deny of one tool call.

A call is cut into parts: the path of a file tool, or each simple command and each redirect of a command line. Every
part is judged alone by all rules that match it; the strictest wins, over rules and over parts; a part that nothing
allows is denied. So the order of rules never changes a verdict.

An opaque command line gets what the policy says for opaque, except that
  - a deny rule that matches a part seen in it denies it;
  - a rule without argv that allows execute allows it too, unless some deny rule names an argv: whether that one is
    broken cannot be known, so the policy's word on opaque holds.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agent.paths import WORKSPACE
from gateway.policy.decision import DEFAULT_DENY, INVALID_ARGUMENTS, OPAQUE, Decision, Effect, Match
from gateway.policy.document import FILE_TOOLS, PolicyDocument
from gateway.policy.globs import PathGlob, compile_glob, path_problem
from gateway.policy.rules import CompiledRule, ToolRules, compile_rules
from gateway.policy.shell import Redirect
from gateway.policy.words import Word
from gateway.policy.wrappers import Programs, read_programs

_PART_CHARS = 200
# The file systems of a sandbox in which tool code can make names.
_WRITABLE_ROOTS = (WORKSPACE, "/tmp", "/dev/shm")  # noqa: S108 - names in the sandbox
_NO_RULES = ToolRules()


@dataclass
class _Ruling:
    """What was found so far about one call."""

    trace: list[Match] = field(default_factory=list)
    denying: list[CompiledRule] = field(default_factory=list)
    allowing: list[CompiledRule] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)

    def take(self, part: str, rules: Iterable[CompiledRule], *, needs_allow: bool = True) -> None:
        """Judge one part. A part that needs no allow (a wrapper) can only be denied."""
        allowed: CompiledRule | None = None
        denied = False
        for rule in rules:
            self.trace.append(Match(_shown(part), rule.id, rule.effect))
            if rule.effect == "deny":
                denied = True
                self.denying.append(rule)
            elif allowed is None or rule.place < allowed.place:
                allowed = rule
        if allowed is not None:
            self.allowing.append(allowed)
        elif needs_allow and not denied:
            self.unmatched.append(_shown(part))


class Policy:
    """A policy ready to judge. `version` is a short name of the content, `digest` the whole SHA-256 in hex."""

    def __init__(self, document: PolicyDocument) -> None:
        canonical = json.dumps(document.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        self.document = document
        self.digest = hashlib.sha256(canonical.encode()).hexdigest()
        self.version = f"policy_{self.digest[:12]}"
        self._rules = compile_rules(document.rules)

    @property
    def tells_paths_apart(self) -> bool:
        """Whether a rule of a file tool treats two paths of one writable file system differently.

        Then a hard link, which tool code can make within a file system, could give a file the name of the other kind.
        """
        globs = (compile_glob(text) for rule in self.document.rules for text in rule.paths or ())
        return any(_is_finer(glob) for glob in globs)

    def judge(self, tool: str, arguments: Mapping[str, object]) -> Decision:
        """Judge a call on its final arguments. Never raises; what cannot be judged is denied."""
        if tool in FILE_TOOLS:
            return self._judge_path(tool, arguments)
        if tool == "execute":
            return self._judge_command(arguments)
        if tool in self._rules:
            ruling = _Ruling()
            ruling.take(tool, self._rules[tool].general)
            return self._conclude(tool, ruling)
        return self._decide(DEFAULT_DENY, "deny", f"no rule of the policy allows the tool {tool[:_PART_CHARS]!r}")

    def _judge_path(self, tool: str, arguments: Mapping[str, object]) -> Decision:
        path = arguments.get("path")
        problem = path_problem(path)
        if problem is None and tool == "glob":
            problem = _pattern_problem(arguments.get("pattern"))
        if problem is not None or not isinstance(path, str):
            return self._decide(INVALID_ARGUMENTS, "deny", f"{tool} was not judged: {problem}")
        ruling = _Ruling()
        rules = self._rules.get(tool, _NO_RULES)
        ruling.take(path, rules.matching_path(path))
        if tool in ("glob", "grep"):
            ruling.take(f"below {path}", rules.denying_below(path), needs_allow=False)
        return self._conclude(tool, ruling)

    def _judge_command(self, arguments: Mapping[str, object]) -> Decision:
        command = arguments.get("command")
        if not isinstance(command, str):
            return self._decide(INVALID_ARGUMENTS, "deny", "execute was not judged: command must be text")
        programs = read_programs(command)
        rules = self._rules.get("execute", _NO_RULES)
        ruling = _Ruling()
        unclear = self._take_redirects(programs, ruling, rules)
        for program in programs.programs:
            matching = rules.matching_argv(program.words, wrapper=program.wrapper)
            ruling.take(_text(program.words), matching, needs_allow=not program.wrapper)
        opaque = programs.opaque or unclear
        if opaque is None:
            return self._conclude("execute", ruling)
        return self._conclude_opaque(opaque, ruling, rules)

    def _take_redirects(self, programs: Programs, ruling: _Ruling, rules: ToolRules) -> str | None:
        """Judge redirects as read_file and write_file of their target; return why one is not clear."""
        unclear: str | None = None
        for redirect in programs.redirects:
            if redirect.target == "/dev/null":
                continue
            path = _redirect_path(redirect)
            if path is None:
                unclear = f"a redirect to {redirect.target!r} is not a plain path"
                continue
            file_rules = self._rules.get("write_file" if redirect.writes else "read_file", _NO_RULES)
            part = f"{'>' if redirect.writes else '<'} {path}"
            ruling.take(part, [*rules.general, *file_rules.matching_path(path)])
        return unclear

    def _conclude(self, tool: str, ruling: _Ruling) -> Decision:
        if ruling.denying:
            return self._by_rule(ruling.denying, ruling)
        if ruling.unmatched or not ruling.allowing:
            part = ruling.unmatched[0] if ruling.unmatched else "this"
            reason = f"no rule of the policy allows {tool}: {part}"
            return self._decide(DEFAULT_DENY, "deny", reason, ruling)
        return self._by_rule(ruling.allowing, ruling)

    def _conclude_opaque(self, opaque: str, ruling: _Ruling, rules: ToolRules) -> Decision:
        opaque = _shown(opaque)
        part = "the whole line"
        ruling.trace.extend(Match(part, rule.id, rule.effect) for rule in rules.general)
        denying = [*ruling.denying, *(rule for rule in rules.general if rule.effect == "deny")]
        if denying:
            return self._by_rule(denying, ruling)
        if rules.general and not rules.denies_argv:
            return self._by_rule(rules.general, ruling)
        if self.document.opaque == "allow":
            return self._decide(OPAQUE, "allow", f"the policy allows opaque command lines; {opaque}", ruling)
        reason = f"the command line is opaque: {opaque}. Write plain commands with literal words, or one per call."
        return self._decide(OPAQUE, "deny", reason, ruling)

    def _by_rule(self, rules: list[CompiledRule], ruling: _Ruling) -> Decision:
        """Return the verdict of rules with the same effect, in the name of the first in the file."""
        rule = min(rules, key=lambda candidate: candidate.place)
        return self._decide(rule.id, rule.effect, rule.reason, ruling)

    def _decide(self, rule: str, verdict: Effect, reason: str, ruling: _Ruling | None = None) -> Decision:
        return Decision(verdict, rule, reason, self.version, tuple(ruling.trace) if ruling else ())


def _is_finer(glob: PathGlob) -> bool:
    """Return whether a glob could match some files of a writable file system and not others."""
    return any(glob.may_match_below(root) and glob.text not in {"/**", root, f"{root}/**"} for root in _WRITABLE_ROOTS)


def _pattern_problem(pattern: object) -> str | None:
    """Return what keeps a glob call's pattern from staying below its path."""
    if not isinstance(pattern, str):
        return "pattern must be text"
    if "\0" in pattern or pattern.startswith("/") or ".." in pattern.split("/"):
        return 'pattern must be relative and without ".."; give the directory as path'
    return None


def _redirect_path(redirect: Redirect) -> str | None:
    """Return the absolute path that a redirect opens, None when it is not plain."""
    if ".." in redirect.target.split("/") or redirect.target.endswith("/"):
        return None
    path = posixpath.normpath(posixpath.join(WORKSPACE, redirect.target))
    path = "/" + path.lstrip("/")
    if path.startswith("/dev/") or path_problem(path) is not None:
        return None
    return path


def _text(words: tuple[Word, ...]) -> str:
    return " ".join(word.text for word in words)


def _shown(text: str) -> str:
    """Return a short text for people and models; names that are not UTF-8 come out escaped."""
    return text[:_PART_CHARS].encode("utf-8", "backslashreplace").decode("utf-8")
