from __future__ import annotations

import base64
import itertools
import random
import subprocess
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.document import RedactedPattern, RedactionSection
from gateway.redaction import RedactionFailed, Redactor
from gateway.redaction.patterns import LEAD_LIMIT_BYTES, WELL_KNOWN
from tests.examples import examples
from tests.unit.gateway.redaction.secrets import B64, PEM, PEM_BODY, SECRETS, after

WELL = Redactor(RedactionSection())
OWN = Redactor(
    RedactionSection(
        patterns=(
            RedactedPattern(id="badge", pattern=r"\bBADGE-\d{6}\b", longest_chars=12),
            RedactedPattern(id="word", pattern=r"^pass(word)?: .+$", longest_chars=20),
            RedactedPattern(id="loose", pattern=r"x[^z]*y", longest_chars=3),
        )
    )
)
REPOSITORY = Path(__file__).parents[4]

pieces = st.one_of(
    st.sampled_from([(lead + secret + after(id_)).encode() for id_, lead, secret in SECRETS]),
    st.sampled_from([(lead + secret[: len(secret) // 2]).encode() for _, lead, secret in SECRETS]),
    st.sampled_from(
        [b"BADGE-123456", b"BADGE-12345", b"pass: a b c", b"password: 0123456789abc", b"xay", b"xx", b"xabcy"]
    ),
    st.sampled_from(
        [b"\n", b" ", b"/", b"@", b"://", b":", b"-----END", b"----", b"-", b"\xff", "ü€".encode(), b"eyJ", b"sk-"]
    ),
    st.sampled_from(
        [b"\\n", b"\\u003d", b"%3D", b"\x1b[01;31m", b"\x1b[K", b"\\", b"%", b"_", b"A", b"x", b"A" * 20, b"a1" * 50]
    ),
    st.sampled_from([secret.encode() for _, _, secret in SECRETS]),
    st.sampled_from([lead.encode() for _, lead, _ in SECRETS]),
    st.binary(max_size=8),
)
texts = st.lists(pieces, max_size=12).map(b"".join)


def at_once(work: Coroutine[Any, Any, bytes]) -> bytes:
    """Return the result of work that waits for no turn."""
    try:
        work.send(None)
    except StopIteration as done:
        return bytes(done.value)
    raise AssertionError("it waits")


def redact(redactor: Redactor, data: bytes, **cut: bool) -> bytes:
    return at_once(redactor.redact(data, **cut))


def streamed(redactor: Redactor, data: bytes, cuts: list[int]) -> bytes:
    stream = redactor.stream()
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return b"".join(stream.feed(data[a:b]) for a, b in itertools.pairwise(edges)) + stream.flush()


@pytest.mark.parametrize("id_, lead, secret", SECRETS)
def test_a_secret_is_masked_and_what_leads_to_it_stays(id_: str, lead: str, secret: str) -> None:
    line = f"export X='{lead}{secret}{after(id_)}\nnext line"
    redacted = redact(WELL, line.encode()).decode()
    assert len(redacted) == len(line)
    assert secret not in redacted
    assert redacted.startswith(f"export X='{lead}{f'[redacted {id_}]'[: len(secret)]}")
    assert redacted.endswith(f"{after(id_)}\nnext line")
    assert redact(WELL, redacted.encode()).decode() == redacted


@pytest.mark.parametrize("id_, lead, secret", SECRETS)
def test_a_secret_is_masked_however_it_arrives(id_: str, lead: str, secret: str) -> None:
    data = f"a {lead}{secret}{after(id_)}\nb".encode()
    whole = redact(WELL, data)
    stream = WELL.stream()
    assert b"".join(stream.feed(data[at : at + 1]) for at in range(len(data))) + stream.flush() == whole
    for cut in range(len(data)):
        assert streamed(WELL, data, [cut]) == whole


@examples(400)
@given(texts, st.lists(st.integers(0, 4000), max_size=6), st.booleans())
def test_a_stream_is_redacted_as_the_whole_is(data: bytes, cuts: list[int], own: bool) -> None:
    redactor = OWN if own else WELL
    whole = redact(redactor, data)
    assert len(whole) == len(data)
    assert streamed(redactor, data, cuts) == whole
    stream = redactor.stream()
    assert b"".join(stream.feed(data[at : at + 1]) for at in range(len(data))) + stream.flush() == whole


@examples(200)
@given(texts)
def test_what_was_redacted_stays_as_it_is(data: bytes) -> None:
    once = redact(WELL, data)
    assert redact(WELL, once) == once


@examples(100)
@given(texts, st.integers(0, 3000), st.integers(1, 40))
def test_a_page_with_its_surroundings_shows_what_the_whole_shows(data: bytes, at: int, size: int) -> None:
    at %= len(data) + 1
    margin = OWN.margin_bytes
    before, after_ = data[max(0, at - margin) : at], data[at + size : at + size + margin]
    page = at_once(OWN.within(before, data[at : at + size], after_))
    assert len(page) == len(data[at : at + size])
    if len(data) < margin:
        assert page == redact(OWN, data)[at : at + size]


@pytest.mark.parametrize("id_, lead, secret", SECRETS)
def test_half_a_secret_at_a_cut_is_masked(id_: str, lead: str, secret: str) -> None:
    for size in (1, 3, len(secret) // 2, len(secret) - 1):
        head = redact(WELL, f"a {lead}{secret[:size]}".encode(), cut_end=True).decode()
        assert secret[:size] not in head.removeprefix(f"a {lead}") or size < 3
        assert head.startswith((f"a {lead}[", "a sk-["))


def test_the_end_of_a_token_at_a_cut_start_is_masked() -> None:
    assert redact(WELL, f"{B64[:20]} rest".encode(), cut_start=True) == b"[redacted cut]".ljust(20, b"*") + b" rest"
    assert redact(WELL, b" plain text", cut_start=True) == b" plain text"


def test_a_plain_line_passes_at_once() -> None:
    stream = WELL.stream()
    for piece in (
        b"$ ",
        b"l",
        b"s",
        b"\n",
        b"progress 50%",
        b"... g",
        b"h",
        b"p",
        b"AKI",
        b">>> ",
        b"Continue? [y/n] ",
    ):
        assert stream.feed(piece) == piece
    assert stream.flush() == b""


def test_only_the_possible_secret_is_held_back() -> None:
    stream = WELL.stream()
    assert stream.feed(b"see http://localhost:80") == b"see http://localhost:"
    assert stream.feed(b"80/ ok gh") == b"8080/ ok gh"
    assert stream.feed(b"p_abc") == b"p_"
    assert stream.feed(b" not one") == b"abc not one"


def test_what_is_held_is_bounded() -> None:
    stream = WELL.stream()
    given_back = 0
    for piece in [b"eyJ" + b"a" * 65_536] * 4 + [PEM[:40].encode() + b"A" * 65_536] * 4 + [b"://" + b"a:" * 5000]:
        given_back += len(stream.feed(piece))
        assert len(stream._buffer) < 70_000
    assert len(stream._spans) <= 2


def test_a_key_without_its_end_is_masked_as_far_as_it_goes() -> None:
    half = PEM[: len(PEM) // 2]
    redacted = redact(WELL, f"{half}\n<end>".encode()).decode()
    assert "MIIE" not in redacted
    assert redacted.endswith("<end>")


@pytest.mark.parametrize(
    "before, behind",
    [
        ("", "\r"),
        ("    12\t", ""),
        ("    12→", ""),
        ("a/b-c_d.pem:12:", ""),
        ("/home/x/id_rsa-12-", ""),
        ("-", ""),
        ("\x1b[31m", "\x1b[m"),
        ("\x1b[35ma.pem\x1b[m\x1b[36m:\x1b[m", ""),
    ],
)
def test_a_key_is_masked_whatever_its_lines_begin_and_end_with(before: str, behind: str) -> None:
    shown = "".join(f"{before}{line}{behind}\n" for line in PEM.splitlines())
    redacted = redact(WELL, f"{shown}<end>".encode()).decode()
    assert "MIIE" not in redacted
    assert B64[5:30] not in redacted
    assert redacted.endswith("<end>")


def test_a_key_is_masked_behind_its_headers() -> None:
    begin, end = ("-----" + f"{word} PGP PRIVATE KEY BLOCK-----" for word in ("BEGIN", "END"))
    shown = f"{begin}\nVersion: GnuPG v2.0.22 (GNU/Linux)\n\n{PEM_BODY}\n{end}\n<end>"
    redacted = redact(WELL, shown.encode()).decode()
    assert "MIIE" not in redacted
    assert redacted.endswith("<end>")


@pytest.mark.parametrize(
    "plain",
    [
        "https://github.com/a/b/pull/3#x@y",
        "http://localhost:8080/path@2x",
        "git clone git@github.com:a/b.git",
        "postgres://app:${PASSWORD}@db",
        "postgres://app:<password>@db",
        "risk-assessment-of-something-long-enough",
        "sk-folding-cube-and-other-css-classes",
        "npm_config_registry=https://registry.npmjs.org/some/long/path/here",
        "gh" + "p_short",
        "the file begins with -----BEGIN RSA PRIVATE " + "KEY----- and then come lines of base64, says the text",
        "-----BEGIN CERTIFICATE-----\n" + B64 + "\n-----END CERTIFICATE-----",
        "secret_key = load(path)",
        "eyJ" + B64,
        "sha256:" + "0123456789abcdef" * 4,
        "AKIA is how they begin",
        "walk_directories_and_collect_all_the_files_in_them_once",
        "disk_test_reportsLongEnoughToBeOne and risk_test_abcdefghijklmnop",
        "surf_abcdefghijklmnopqrstuvwxyzabcdefghijklmnop",
        "https://example.com/a?b=c:d@e and http://[::1]:80/x@y",
        "foo.eyJump()",
    ],
)
def test_what_is_no_secret_stays(plain: str) -> None:
    assert redact(WELL, plain.encode()).decode() == plain


def test_bytes_at_random_stay() -> None:
    source = random.Random(5)
    for _ in range(40):
        data = source.randbytes(30_000)
        for text in (
            base64.b64encode(data),
            base64.encodebytes(data),
            base64.b32encode(data),
            data.hex().encode(),
            base64.b85encode(data),
        ):
            assert redact(WELL, text) == text


def test_bytes_at_random_in_the_alphabet_of_tokens_stay_but_for_a_few() -> None:
    """With - and _ among the letters, sk- and thirty letters after it come up by chance, one in some megabytes."""
    text = base64.urlsafe_b64encode(random.Random(9).randbytes(12_000_000))
    assert redact(WELL, text).count(b"[redacted") <= 8


def test_letters_and_digits_alone_hold_no_access_key() -> None:
    base32 = f"{'QPZRY4X3GF2TVDW7S3JN54KHCE6MUA7L'}AKIA{'QPZRY4X3GF2TVDW7S3JN54KHCE6MUA7L'}".encode()
    assert redact(WELL, base32) == base32


@pytest.mark.parametrize(
    "before, lead, secret, behind",
    [
        ('{"log": "line\\n', "gh" + "p_", B64[:36], '"}'),
        ('"a\\t', "gh" + "p_", B64[:36], '"'),
        ('"x\\n', "AKIA", "IOSFODNN7EXAMPLE", '"'),
        ('"x\\n', "sk" + "-proj-", B64[:40], '"'),
        ('"x\\n', "sk" + "-", B64[:48], '"'),
        ("Bearer\\t", "eyJhbGciOiJIUzI1NiJ9." + "eyJ", "zdWIiOiIxMjM0In0." + B64[:20], ""),
        ("token%3D", "gh" + "p_", B64[:36], "&x=1"),
        ("id%3D", "AKIA", "IOSFODNN7EXAMPLE", "&x=1"),
        ("key%3D", "sk" + "-", B64[:48], "&x=1"),
        ("\\u003d", "hf" + "_", B64[:34], ""),
        ("\x1b[01;31m\x1b[K", "gh" + "p_", B64[:36], "\x1b[m\x1b[K"),
        ("\x1b[01;31m\x1b[K", "sk" + "-", B64[:48], "\x1b[m\x1b[K"),
        ("\x1b[35mfile\x1b[m:", "alk" + "_", B64[:43], ""),
        ("\x1b[01;31m\x1b[K", "gh" + "p_" + "\x1b[m\x1b[K", B64[:36], ""),
        ("token_", "gh" + "p_", B64[:36], ""),
        ("my_", "hf" + "_", B64[:34], ""),
        ("x", "ASIA", "IOSFODNN7EXAMPLE", ""),
        ("x", "npm" + "_", B64[:36], ""),
        ("x", "glpat" + "-", B64[:20], ""),
        ("x", "xoxb" + "-", "1234567890-1234567890", ""),
        ("n", "sk" + "_live_", B64[:24], ""),
        ("n", "github" + "_pat_", B64[:22] + "_" + B64[:59], ""),
        ('{\\"a\\": {', '\\"SecretAccessKey\\": \\"', B64[:38] + "/+", '\\"}}'),
        ('{\\\\\\"a\\\\\\": {', '\\\\\\"SecretAccessKey\\\\\\": \\\\\\"', B64[:38] + "/+", '\\\\\\"}}'),
        ("", "secret-access-key: ", B64[:40], ""),
        ("", f"postgres://{'u' * 70}:", "hunter2secret", "@host/db"),
        ("", f"postgres://{'u' * 250}:", "hunter2secret", "@host/db"),
    ],
)
def test_what_stands_before_a_secret_does_not_hide_it(before: str, lead: str, secret: str, behind: str) -> None:
    data = f"{before}{lead}{secret}{behind}"
    redacted = redact(WELL, data.encode()).decode()
    assert secret not in redacted
    assert redacted.startswith(f"{before}{lead}[redacted"[: len(before + lead + secret)])
    assert redacted.endswith(behind)
    assert len(redacted) == len(data)
    stream = WELL.stream()
    pieces_ = [stream.feed(data[at : at + 1].encode()) for at in range(len(data))]
    assert b"".join(pieces_) + stream.flush() == redacted.encode()


def cpu_s(data: bytes, piece: int) -> float:
    """Return the least CPU time of a few tries, in seconds for each byte."""
    tries = []
    for _ in range(4):
        stream = WELL.stream()
        begun = time.process_time()
        for at in range(0, len(data), piece):
            stream.feed(data[at : at + piece])
        stream.flush()
        tries.append((time.process_time() - begun) / len(data))
    return min(tries)


def scattered(words: Sequence[str], between: Sequence[str]) -> bytes:
    source = random.Random(7)
    pairs = zip(source.choices(words, k=60_000), source.choices(between, k=60_000), strict=True)
    return "".join(itertools.chain.from_iterable(pairs)).encode()


KEY = "-----BEGIN PRIVATE " + "KEY-----"
LEADS = [*sorted({lead for _, lead, _ in SECRETS}), "glrt-", "AIza", "aa.eyJ"]


@pytest.mark.parametrize(
    "data",
    [
        b" sk-" * 60_000,
        b"-eyJ" * 60_000,
        b"a.eyJ" * 50_000,
        b" gh" + b"p_ gh" * 50_000,
        b"://" * 80_000,
        b"://a:" * 50_000,
        KEY.encode() * 9000,
        (KEY + "\n").encode() * 9000,
        b"secret_key=" * 22_000,
        scattered([lead for lead in LEADS if "--" not in lead], [" ", ". ", "x "]),
        scattered(["glpat-", "glrt-", "-alk" + "_", "_AIza"], ["", ".", "a."]),
        scattered([lead for lead in LEADS if "--" not in lead], ["abc ", "X_7\n", "a-b2c /", "9 "]),
        scattered([KEY], ["ab.cd " * size for size in range(12)])[:300_000],
    ],
    ids=lambda data: repr(data[:12]),
)
@pytest.mark.parametrize("piece", [4096, 1 << 20])
def test_what_only_looks_like_secrets_costs_no_more_than_plain_text_does(data: bytes, piece: int) -> None:
    plain = b"hello world, this is text of no importance\n" * 6000
    assert cpu_s(data, piece) < 20 * cpu_s(plain, piece)


def test_this_repositorys_own_files_stay() -> None:
    files = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True).stdout.split(
        b"\0"
    )
    changed = []
    for name in filter(None, files):
        path = REPOSITORY / name.decode()
        if not path.is_file() or "redact" in path.as_posix():
            continue
        data = path.read_bytes()
        redacted = redact(WELL, data)
        changed += [
            (name.decode(), old, new)
            for old, new in zip(data.split(b"\n"), redacted.split(b"\n"), strict=True)
            if old != new
        ]
    print(changed)
    assert len(changed) <= 12, changed


def test_own_patterns_match_within_a_line_and_are_named() -> None:
    data = b"id BADGE-123456, BADGE-1234567\npass: hello you\nbypass: x\n"
    assert redact(OWN, data) == b"id [redacted ba, BADGE-1234567\n[redacted word]\nbypass: x\n"


def test_a_pattern_that_says_too_little_of_its_length_withholds() -> None:
    redactor = Redactor(RedactionSection(patterns=(RedactedPattern(id="wide", pattern="x.*y", longest_chars=1),)))
    assert redact(redactor, b"x____________y") == b"x____________y"
    with pytest.raises(RedactionFailed, match="longest_chars"):
        redact(redactor, b"x" * 2000 + b"_" * 20 + b"y")


def test_overlapping_secrets_are_one_span_named_after_the_first() -> None:
    token = "gh" + "p_" + B64[:36]
    redacted = redact(WELL, f"https://{token}:x-oauth@github.com".encode()).decode()
    assert B64[:36] not in redacted
    assert "x-oauth" not in redacted
    assert redacted.startswith("https://ghp_[redacted github-token]")


def test_text_and_json_are_redacted_in_every_text() -> None:
    token = "gh" + "p_" + B64[:36]
    assert WELL.json({"a": [token, 1, None], token: {"b": f"x\n{token}"}}) == {
        "a": [WELL.text(token), 1, None],
        WELL.text(token): {"b": f"x\n{WELL.text(token)}"},
    }
    assert B64[:36] not in WELL.text(f"ü {token} \udcff")
    assert WELL.text("ü \udcff") == "ü \udcff"


def test_every_lead_in_is_short_enough_to_be_kept() -> None:
    import re._parser  # type: ignore[import-not-found]

    for secret in WELL_KNOWN:
        assert re._parser.parse(secret.lead).getwidth()[1] <= LEAD_LIMIT_BYTES, secret.id


def test_one_look_finds_what_the_finders_find() -> None:
    redactor = Redactor(RedactionSection(well_known=True))
    for data in (b"", b"plain", b"a" * 5000, _with_a_secret()):
        stream = redactor.stream()
        assert redact(redactor, data) == stream.feed(data) + stream.flush()


def _with_a_secret() -> bytes:
    """Return a text with a secret after much that is none."""
    return b"nothing here\n" * 300 + b"token ghp_" + b"A1b2" * 9


@pytest.mark.parametrize(
    "dense",
    [
        b"://u:passwd@",
        b"-----BEGIN PRIVATE " + b"KEY-----" + b"a" * 32 + b"-----END",
        b"-----BEGIN PRIVATE " + b"KEY-----\n" + b"aaaaaaaa\n" * 4 + b"-----END",
        b"-----BEGIN PRIVATE " + b"KEY-----" + b"-a" * 100,
        b"gh" + b"p_" + b"a" * 36 + b" ",
    ],
)
def test_a_piece_costs_as_much_for_each_byte_however_long_it_is(dense: bytes) -> None:
    def cost_s(size_bytes: int) -> float:
        data = (dense * (size_bytes // len(dense) + 1))[:size_bytes]
        best = float("inf")
        for _ in range(3):
            stream = WELL.stream()
            started = time.process_time()
            stream.feed(data)
            stream.flush()
            best = min(best, time.process_time() - started)
        return best / size_bytes

    assert cost_s(256 * 1024) < 4 * cost_s(16 * 1024)


@pytest.mark.parametrize("width", [8, 10, 16, 24, 31, 32, 39, 40, 64, 76])
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\\n"])
def test_a_private_key_is_found_however_narrow_its_lines_are(width: int, ends: str) -> None:
    key = B64 * 4
    body = ends.join(key[at : at + width] for at in range(0, len(key), width)) + ends
    begin, end = "-----BEGIN PRIVATE " + f"KEY-----{ends}", "-----END PRIVATE KEY-----"
    shown = WELL.text(f"see {begin}{body}{end} there")
    assert B64[:8] not in shown
    assert B64[80:88] not in shown
    assert shown.startswith("see -----BEGIN PRIVATE KEY-----")
    assert shown.endswith(f"{end} there")


def test_the_margin_is_that_of_the_longest_secret_a_redactor_knows() -> None:
    assert WELL.margin_bytes > len(PEM)
    assert WELL.margin_bytes >= max(one.longest_bytes for one in WELL_KNOWN)
    own = RedactedPattern(id="own", pattern="x+", longest_chars=4000)
    assert Redactor(RedactionSection(well_known=False, patterns=(own,))).margin_bytes == 16_000


def test_json_is_redacted_as_its_texts_are_and_keeps_its_form() -> None:
    token = "gh" + "p_" + B64[:36]
    value = {"a": [token, 1, None, {"b\n": f"x {token}", token: True}], "": "", "u": "ü€\ud800"}
    assert WELL.json(value) == {
        "a": [WELL.text(token), 1, None, {"b\n": WELL.text(f"x {token}"), WELL.text(token): True}],
        "": "",
        "u": "ü€\ud800",
    }
    assert WELL.json({"plain": ["a", 1]}) == {"plain": ["a", 1]}


def test_a_text_that_is_secrets_without_end_fails_instead_of_taking_long() -> None:
    with pytest.raises(RedactionFailed, match="too many"):
        WELL.text("://u:passwd@" * 10_000)
    with pytest.raises(RedactionFailed, match="too many"):
        WELL.json(["://u:passwd@"] * 10_000)
