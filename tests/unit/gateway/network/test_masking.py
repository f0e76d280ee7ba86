"""Secrets are masked in each form and however the stream is cut."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.network.masking import Masked, forms

_SECRETS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=8, max_size=40)


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
    assert _fed(Masked([b"never-there-at-all"]), data, cuts) == data


@given(_SECRETS, st.binary(max_size=5), st.binary(max_size=5))
def test_it_is_found_within_base64(secret: str, before: bytes, after: bytes) -> None:
    coded = base64.b64encode(before + secret.encode() + after)
    for form in (coded, coded.translate(bytes.maketrans(b"+/", b"-_"))):
        shown = Masked(forms(secret)).masked(form)
        masked = shown.count(b"*")
        assert masked >= len(secret) * 8 // 6 - 1


@pytest.mark.parametrize("form", [quote, json.dumps, lambda text: text.encode().hex(), str])
def test_it_is_found_escaped(form: object) -> None:
    secret = 'a/b+c&d"e f<g>'
    assert callable(form)
    shown = Masked(forms(secret)).masked(form(secret).encode())
    assert set(shown) <= set(b'*"')


def test_nothing_is_kept_back_but_the_start_of_a_secret() -> None:
    masked = Masked([b"secret-one", b"second"])
    assert masked.feed(b"abc") == b"abc"
    assert masked.feed(b"abc sec") == b"abc "
    assert masked.feed(b"tion") == b"section"
    assert masked.feed(b"secsec") == b"sec"
    assert masked.feed(b"ret-one!") == b"**********!"
    assert masked.feed(b"secon") == b""
    assert masked.flush() == b"secon"
