"""Secrets are masked in each form and however the stream is cut."""

from __future__ import annotations

import base64
import html
import json
import random
import re
import string
from collections.abc import Callable
from itertools import pairwise
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.network.masking import Form, Masked, forms

_SECRETS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=8, max_size=40)
_FEW = st.lists(st.sampled_from([*"ab%&\\/+", "\\u002f", "%2f", "&#x2f;", "&amp;"]), min_size=3, max_size=6).map(
    "".join
)


_CUTS = st.lists(st.integers(0, 200), max_size=8)


def _escaped_by_go(text: str) -> str:
    """As Go's encoding/json and Gson do."""
    said = json.dumps(text)[1:-1]
    return "".join(f"\\u{ord(one):04x}" if one in "<>&" else one for one in said)


def _escaped_by_net(text: str) -> str:
    """As System.Text.Json does."""
    return "".join(f"\\u{ord(one):04X}" if one in "<>&+'\"`" else one.replace("\\", "\\\\") for one in text)


def _escaped_by_php(text: str) -> str:
    """As json_encode does with all JSON_HEX_ options."""
    said = json.dumps(text)[1:-1].replace("/", "\\/")
    return "".join(f"\\u{ord(one):04X}" if one in "<>&'" else one for one in said)


def _in_html(text: str, number: str) -> str:
    return "".join(one if one.isalnum() else number.format(ord(one)) for one in text)


_ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "URL": quote,
    "all of a URL": lambda text: quote(text, safe=""),
    "form": quote_plus,
    "small letters in URLs": lambda text: re.sub("%..", lambda found: found[0].lower(), quote(text, safe="")),
    "JSON": lambda text: json.dumps(text)[1:-1],
    "Go's JSON": _escaped_by_go,
    ".NET's JSON": _escaped_by_net,
    "PHP's JSON": _escaped_by_php,
    "HTML": html.escape,
    "Go's HTML": lambda text: (
        html.escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;").replace("+", "&#43;")
    ),
    "PHP's HTML": lambda text: html.escape(text).replace("&#x27;", "&#039;"),
    "numbers in HTML": lambda text: _in_html(text, "&#{};"),
    "hex in HTML": lambda text: _in_html(text, "&#x{:x};"),
    "large hex in HTML": lambda text: _in_html(text, "&#x{:04X};"),
    "hex": lambda text: text.encode().hex(),
    "large hex": lambda text: text.encode().hex().upper(),
}


def _form(text: str) -> Form:
    return Form((one.encode(),) for one in text)


def _fed(masked: Masked, data: bytes, cuts: list[int]) -> bytes:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    shown = b"".join(masked.feed(data[start:end]) for start, end in pairwise(edges))
    return shown + masked.flush()


@given(_SECRETS, st.binary(max_size=30), st.binary(max_size=30), st.lists(st.integers(0, 200), max_size=20))
def test_a_stream_is_masked_however_it_is_cut_and_keeps_its_length(
    secret: str, before: bytes, after: bytes, cuts: list[int]
) -> None:
    data = before + secret.encode() + after
    shown = _fed(Masked(forms(secret)), data, cuts)
    assert len(shown) == len(data)
    assert secret.encode() not in shown or secret == "*" * len(secret)
    assert _fed(Masked([_form("never-there-at-all")]), data, cuts) == data


@given(
    st.lists(_FEW, min_size=1, max_size=3), st.lists(st.one_of(_FEW, st.integers(0, 20)), max_size=12), st.lists(_CUTS)
)
def test_each_way_to_cut_a_stream_gives_the_same(
    secrets: list[str], pieces: list[str | int], cuts: list[list[int]]
) -> None:
    """Of secrets that overlap with each other and with themselves, whole, in part and escaped."""
    known = [form for secret in secrets for form in forms(secret)]
    echoes = [encode(secret) for secret in secrets for encode in _ENCODINGS.values()]
    data = "".join(piece if isinstance(piece, str) else echoes[piece % len(echoes)][piece % 3 :] for piece in pieces)
    whole = Masked(known).masked(data.encode())
    assert _fed(Masked(known), data.encode(), list(range(200))) == whole
    for one in cuts:
        assert _fed(Masked(known), data.encode(), one) == whole


@given(_SECRETS)
def test_it_is_found_escaped(secret: str) -> None:
    for name, encode in _ENCODINGS.items():
        echoed = encode(secret).encode()
        assert _fed(Masked(forms(secret)), b"<" + echoed + b">", [7, 19]) == b"<" + b"*" * len(echoed) + b">", name


@given(_SECRETS, st.binary(max_size=80), st.binary(max_size=5), st.sampled_from([3, 60, 64, 76]))
def test_it_is_found_within_base64(secret: str, before: bytes, after: bytes, width: int) -> None:
    coded = base64.b64encode(before + secret.encode() + after).decode()
    for ending in ("", "\n", "\r\n", "\\n", "\\r\\n"):
        lines = ending.join(coded[at : at + width] for at in range(0, len(coded), width))
        for text in (lines, lines.translate(str.maketrans("+/", "-_"))):
            assert Masked(forms(secret)).masked(text.encode()).count(b"*") >= len(secret) * 8 // 6 - 1


def test_base64_in_a_url_is_found() -> None:
    secret = "~~~???>>>ooo"
    coded = base64.b64encode(secret.encode()).decode()
    assert set("+/") <= set(coded)
    for echoed in (quote(coded, safe=""), quote(coded, safe="").replace("%2F", "%2f").replace("%2B", "%2b")):
        shown = Masked(forms(secret)).masked(echoed.encode())
        assert set(shown) <= set(b"*%3D")


@pytest.mark.parametrize("length", [8, 200, 16_384])
def test_a_long_secret_is_found(length: int) -> None:
    secret = "".join(random.Random(1).choices(string.digits + string.ascii_letters + string.punctuation, k=length))
    for encode in _ENCODINGS.values():
        echoed = encode(secret).encode()
        masked = Masked(forms(secret))
        assert masked.feed(echoed[:-1]) == b""
        assert masked.feed(echoed[-1:]) + masked.flush() == b"*" * len(echoed)


def test_what_is_no_secret_takes_the_same_work_for_each_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "a/b+c&d%e-f_g.h~0123456789"
    follow, work = Form._followed, [0]

    def counted(self: Form, data: bytes, at: int, part: int) -> int:
        work[0] += 1
        return follow(self, data, at, part)

    monkeypatch.setattr(Form, "_followed", counted)
    for echo in (b"a", b"%", b"a%2Fb", secret[:-1].encode(), quote(secret)[:-1].encode()):
        counts = []
        for size in (50_000, 100_000):
            work[0] = 0
            masked = Masked(forms(secret))
            data = (echo * size)[:size]
            for at in range(0, size, 1000):
                masked.feed(data[at : at + 1000])
            counts.append(work[0])
        assert counts[1] <= 2 * counts[0] + 100
        assert counts[1] <= 100_000


def test_nothing_is_kept_back_but_the_start_of_a_secret() -> None:
    masked = Masked([_form("secret-one"), _form("second")])
    assert masked.feed(b"abc") == b"abc"
    assert masked.feed(b"abc sec") == b"abc "
    assert masked.feed(b"tion") == b"section"
    assert masked.feed(b"secsec") == b"sec"
    assert masked.feed(b"ret-one!") == b"**********!"
    assert masked.feed(b"secon") == b""
    assert masked.flush() == b"secon"
