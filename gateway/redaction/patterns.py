"""Secrets in well-known formats, each as what leads to it, what it is made of, and what it must begin with.

The lead-in (`ghp_`, `://user:`) stays in sight: it is no secret, it tells a reader what was taken out, and a stream
has to hold nothing back before it has seen all of it. What follows is masked to the end of the run, however long: so
what is masked depends on few bytes around it, and not on how the bytes arrive.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import re2

LEAD_LIMIT_BYTES = 128
"""The longest lead-in."""

_WORD = r"[A-Za-z0-9_-]"
_BASE64 = r"[A-Za-z0-9+/=]"


_FIRST = re.compile(r"(?:\\b)?(?:\(\?i?:)?(?:\[(?P<class>\w+)\]|(?P<one>[\w:-]))")


@dataclass(frozen=True)
class SecretFormat:
    """One format. `lead`, `run` (one class of characters) and `check` are RE2 over bytes.

    A secret is the longest run after the lead-in, if `check` matches at its start, looking at `within_bytes` of it at
    most. With `before` the run must not be longer than that and must be followed by this byte. A run ends where `stop`
    begins.
    """

    id: str
    lead: str
    run: str
    check: str
    within_bytes: int = 300
    before: bytes = b""
    stop: bytes = b""

    @cached_property
    def first(self) -> str:
        """The characters that the lead-in may begin with, of either case."""
        found = _FIRST.match(self.lead)
        if found is None:
            raise ValueError(f"{self.lead}: begin a lead-in with a letter or a class of letters")
        return found["class"] or found["one"]

    @cached_property
    def lead_regex(self) -> Any:
        """The lead-in."""
        return compiled(self.lead)

    @cached_property
    def run_regex(self) -> Any:
        """The longest run, the empty one too."""
        return compiled(f"{self.run}*")

    @cached_property
    def check_regex(self) -> Any:
        """What the run begins with."""
        return compiled(self.check)


def compiled(pattern: str) -> Any:
    """Compile one of this file's own patterns; bytes that are no UTF-8 are characters like any other."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    return re2.compile(pattern.encode(), options)


def _token(id_: str, lead: str, least: int, run: str = _WORD) -> SecretFormat:
    return SecretFormat(id_, lead, run, f"{run}{{{least}}}", within_bytes=least)


WELL_KNOWN = (
    _token("aws-access-key-id", r"\b(?:AKIA|ASIA)", 16, "[A-Z0-9]"),
    SecretFormat(
        "aws-secret-key",
        r"""(?i:secret_?(?:access_?)?key)["']?[ \t]{0,4}(?:=>|[:=])[ \t]{0,4}["']?""",
        _BASE64,
        "[A-Za-z0-9+/]{40}",
        within_bytes=40,
    ),
    _token("github-token", r"\bgh[oprsu]_", 36, "[A-Za-z0-9_]"),
    _token("github-token", r"\bgithub_pat_", 60, "[A-Za-z0-9_]"),
    _token("gitlab-token", r"\bgl(?:pat|dt|rt|ptt|cbt|oas|soat|ft|imt|agent)-", 20, "[A-Za-z0-9_.-]"),
    _token("slack-token", r"\bxox[abcdeoprs]-", 16, "[A-Za-z0-9-]"),
    _token("slack-token", r"\bxapp-", 16, "[A-Za-z0-9-]"),
    _token("google-api-key", r"\bAIza", 35),
    SecretFormat(
        "api-key",  # OpenAI, Anthropic, OpenRouter; a name such as sk-some-css-class has no twenty letters in a row
        r"\bsk-",
        _WORD,
        r"(?:[A-Za-z0-9]{20}|(?:proj|svcacct|admin|ant|or|lf)-[A-Za-z0-9_-]{20})",
        within_bytes=32,
    ),
    _token("stripe-key", r"\b[rs]k_(?:live|test)_", 16, "[A-Za-z0-9]"),
    _token("stripe-key", r"\bwhsec_", 24, "[A-Za-z0-9+/=]"),
    _token("npm-token", r"\bnpm_", 36, "[A-Za-z0-9]"),
    SecretFormat("pypi-token", r"\bpypi-", _WORD, f"AgE{_WORD}{{50}}", within_bytes=64),
    _token("docker-token", r"\bdckr_(?:pat|oat)_", 20),
    _token("hugging-face-token", r"\bhf_", 34, "[A-Za-z0-9]"),
    _token("digitalocean-token", r"\bdo[opr]_v1_", 64, "[a-f0-9]"),
    _token("vault-token", r"\bhv[bs]\.", 24),
    SecretFormat("sendgrid-key", r"\bSG\.", "[A-Za-z0-9_.-]", f"{_WORD}{{16,32}}\\.{_WORD}{{32}}", within_bytes=80),
    _token("age-secret-key", r"\bAGE-SECRET-KEY-1", 58, "[A-Z0-9]"),
    SecretFormat(
        "jwt",
        r"\beyJ",
        "[A-Za-z0-9_.-]",
        rf"{_WORD}{{8,1000}}\.eyJ{_WORD}{{4}}",
        within_bytes=1100,
    ),
    SecretFormat("azure-storage-key", r"(?i:AccountKey)=", _BASE64, "[A-Za-z0-9+/]{80}", within_bytes=80),
    _token("airlock-key", r"\balk_", 43),
    SecretFormat(
        "url-password",
        r"""://[^\x00-\x20:/@?#"'<>\[]{0,64}:""",
        r"""[^\x00-\x20/@"'<>`]""",
        r"""[^$<{%*(\[]""",  # not ${PASSWORD}, <password>, %s and the like
        within_bytes=256,
        before=b"@",
    ),
    SecretFormat(
        "private-key",
        "-----BEGIN [A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----",
        # Wide: a key also stands in JSON (\n as two characters), behind line numbers, paths, quotes and + or > marks.
        r"""[A-Za-z0-9+/=\s\\"',:|>._-]""",
        rf"""(?s:.{{0,200}}?){_BASE64}{{32}}""",  # and not the words of a text that speaks of keys
        within_bytes=300,
        stop=b"-----END",
    ),
)
"""All of them. Where two begin at the same place, the first counts."""
