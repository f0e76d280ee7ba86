"""Secrets in well-known formats, each as what leads to it, what it must begin with, and what it is made of.

The lead-in (`ghp_`, `://user:`) stays in sight: it is no secret, it tells a reader what was taken out, and a stream
has to hold nothing back before it has seen all of it. What follows is masked to the end of the run, however long: so
what is masked depends on few bytes around it, and not on how the bytes arrive.

One RE2 pattern for each of GROUPS finds lead-in and beginning together, so that what only looks like a lead-in costs
no more than plain text. RE2 stays fast where few candidates can be under way at the same time: that is why most
beginnings leave out a character that their own lead-in has, and none asks for more than is needed to be sure.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import re2

LEAD_LIMIT_BYTES = 400
"""The longest lead-in."""

_REGEX_MEMORY_BYTES = 64 * 1024 * 1024
_ALNUM = "[A-Za-z0-9]"
_WORD = "[A-Za-z0-9_-]"
_BASE64 = "[A-Za-z0-9+/=]"
_COLOURS = r"\[[0-9;]{0,16}[mK]"
# What goes before a lead-in that is also a part of words (`risk-`): no letter, save that of an escape or a colour.
_EDGE = rf"(?:^|[^A-Za-z0-9]|\\[abefnrtv0]|\\u[0-9A-Fa-f]{{4}}|\\x[0-9A-Fa-f]{{2}}|%[0-9A-Fa-f]{{2}}|{_COLOURS})"
# In capitals and digits alone (base32), four letters are found by chance.
_EDGE_OF_CAPITALS = r"(?:^|[^A-Z0-9]|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}|%[0-9A-Fa-f]{2})"
# Between a lead-in that grep found and the rest.
_COLOURED = rf"(?:\x1b{_COLOURS}){{0,2}}"
_QUOTE = r"""\\{0,4}["']?"""


@dataclass(frozen=True)
class SecretFormat:
    """One format. `lead`, `check`, `run` (one class of characters) and `pending` are RE2 over bytes.

    A secret is the longest run after the lead-in, if `check`, of `within_bytes` at most, matches at its start. With
    `before` it is what `check` matches, if this byte follows. A run ends where `stop` begins. `pending` is what
    `check` may look like before all of it is there, by default a run. `longest_bytes` is the longest secret: code
    that shows the end of a text must look that far back.
    """

    id: str
    lead: str
    run: str
    check: str
    within_bytes: int
    before: bytes = b""
    stop: bytes = b""
    pending: str = ""
    longest_bytes: int = 4096

    @property
    def whole(self) -> str:
        """The lead-in and what shows that a secret follows."""
        return f"(?:{self.lead})(?:{self.check}){self.before.decode()}"

    @property
    def unfinished(self) -> str:
        """The lead-in and what is there of a secret, up to the end of the bytes."""
        return f"(?:{self.lead})(?:{self.pending or self.run + '*'})"

    @cached_property
    def run_regex(self) -> re.Pattern[bytes]:
        """The longest run, the empty one too: one class, for which Python's own engine is quick to call."""
        return re.compile(f"{self.run}*".encode("latin-1"))


def compiled(pattern: str) -> Any:
    """Compile one of this package's own patterns; bytes that are no UTF-8 are characters like any other."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    options.max_mem = _REGEX_MEMORY_BYTES
    return re2.compile(pattern.encode("latin-1"), options)


def _token(
    id_: str, lead: str, least: int, run: str = _WORD, *, of: str = "", edge: str = "", rest: str = ""
) -> SecretFormat:
    """Return a format that begins with `least` characters `of` a class, the run's own by default."""
    check = f"{of or run}{{{least}}}{rest}"
    return SecretFormat(id_, edge + lead + _COLOURED, run, check, within_bytes=100 if rest else least)


_TOKENS = (
    _token("aws-access-key-id", "(?:AKIA|ASIA)", 16, "[A-Z0-9]", of="[A-Z2-7]", edge=_EDGE_OF_CAPITALS),
    SecretFormat(
        "aws-secret-key",
        rf"(?i:secret[_-]?(?:access[_-]?)?key){_QUOTE}[ \t]{{0,4}}(?:=>|[:=])[ \t]{{0,4}}{_QUOTE}",
        _BASE64,
        "[A-Za-z0-9+/]{40}",
        within_bytes=40,
    ),
    _token("github-token", "gh[oprsu]_", 36, "[A-Za-z0-9_]", of=_ALNUM),
    _token("github-token", "github_pat_", 22, "[A-Za-z0-9_]", of=_ALNUM, rest="_[A-Za-z0-9]{36}"),
    _token("gitlab-token", "gl(?:pat|dt|rt|ptt|cbt|oas|soat|ft|imt|agent)-", 20, "[A-Za-z0-9_.-]"),
    _token("slack-token", "xox[abcdeoprs]-", 16, "[A-Za-z0-9-]"),
    _token("slack-token", "xapp-", 16, "[A-Za-z0-9-]"),
    _token("google-api-key", "AIza", 24, edge=_EDGE),
    # OpenAI, Anthropic, OpenRouter; a name such as sk-some-css-class has no twenty letters in a row.
    _token("api-key", "sk-(?:proj|svcacct|admin|ant|or|lf)-", 20),
    _token("api-key", "sk-", 20, of=_ALNUM, edge=_EDGE),
    _token("stripe-key", "[rs]k_live_", 16, _ALNUM),
    _token("stripe-key", "[rs]k_test_", 16, _ALNUM, edge=_EDGE),
    _token("stripe-key", "whsec_", 24, _BASE64),
    _token("npm-token", "npm_", 36, _ALNUM),
    _token("pypi-token", "pypi-AgE", 24),
    _token("docker-token", "dckr_(?:pat|oat)_", 20),
    _token("hugging-face-token", "hf_", 34, _ALNUM, edge=_EDGE),
    _token("digitalocean-token", "do[opr]_v1_", 64, "[a-f0-9]"),
    _token("vault-token", r"hv[bs]\.", 24, edge=_EDGE),
    SecretFormat("sendgrid-key", rf"{_EDGE}SG\.", "[A-Za-z0-9_.-]", rf"{_WORD}{{16,32}}\.{_WORD}{{24}}", 80),
    _token("age-secret-key", "AGE-SECRET-KEY-1", 58, "[A-Z0-9]"),
    # The header says which algorithm it is; what it guards is in what follows.
    _token("jwt", rf"{_WORD}{{2}}\.eyJ", 8, "[A-Za-z0-9_.-]", of=_WORD),
    SecretFormat("azure-storage-key", "(?i:AccountKey)=", _BASE64, "[A-Za-z0-9+/]{80}", within_bytes=80),
    # With an edge: walk_ and talk_ begin many a name.
    _token("airlock-key", "alk_", 24, edge=_EDGE),
)
_URLS = (
    SecretFormat(
        "url-password",
        r"""://[^\x00-\x20:/@?#"'<>\[]{0,256}:""",
        r"""[^\x00-\x20/@"'<>`]""",
        r"""[^\x00-\x20/@"'<>`${%*(\[][^\x00-\x20/@"'<>`]{0,255}""",  # not ${PASSWORD}, <password>, %s and the like
        within_bytes=256,
        before=b"@",
    ),
)
# Wide: a key also stands in JSON (\n as two characters), behind line numbers, arrows, paths, quotes, colours and + or >
# marks, and after headers of PGP. The end of a mask, ] and *, is not in it.
_KEY_TEXT = r"""A-Za-z0-9+/=\s\\"',:;|>._()\x1b\[\x80-\xff"""
# Two dashes at most: where the next key begins, the candidate ends.
_KEY_GAP = rf"(?:-{{0,2}}[{_KEY_TEXT}])"
# Between two lines of a key: the end of one, also where it is written as an escape, and what leads the next.
_KEY_BREAK = r"""["',+ \t]{0,4}(?:\r?\n|\\+r?\\*n)[0-9]{0,6}[ \t>+|:"']{0,12}"""
_KEYS = (
    SecretFormat(
        "private-key",
        "-----BEGIN [A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----",
        f"[{_KEY_TEXT}-]",
        # A long line, or four short ones; not the words of a text about keys.
        rf"{_KEY_GAP}{{0,200}}?(?:{_BASE64}{{32}}|(?:{_BASE64}{{8,39}}{_KEY_BREAK}){{4}})",
        within_bytes=640,
        stop=b"-----END",
        pending=rf"{_KEY_GAP}*-{{0,2}}",
        longest_bytes=16_384,  # 16,384-bit RSA in PEM or OpenSSH format has some 12 KiB
    ),
)
GROUPS: tuple[Sequence[SecretFormat], ...] = (_TOKENS, _URLS, _KEYS)
"""All formats. Each group has one pattern; what two of them find is masked together."""

WELL_KNOWN = (*_TOKENS, *_URLS, *_KEYS)
"""All of them. Where two begin at the same place, the first counts."""
