"""What a request cost: the numbers of an endpoint, believed as far as they can be true, and the prices of a model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.hooks.hook import InferenceRequest
from agent.messages import Message, ProviderData, Usage
from agent.models.prices import Prices
from agent.models.reported_usage import usage_of

REQUEST = InferenceRequest("", (Message(role="user", content="x" * 400),), ())
TOKENS = {"prompt_tokens": 1000, "completion_tokens": 500}


def cached(usage: dict[str, Any]) -> int:
    return usage_of(TOKENS | usage, REQUEST, 40).cached_input_tokens


@pytest.mark.parametrize(
    "reported",
    [
        {"prompt_tokens_details": {"cached_tokens": 800}},
        {"prompt_cache_hit_tokens": 800, "prompt_cache_miss_tokens": 200},
        {"cache_read_input_tokens": 800, "cache_creation_input_tokens": 0},
        {"prompt_tokens_details": None, "cache_read_input_tokens": 800},
        {"prompt_tokens_details": {"cached_tokens": 0}, "prompt_cache_hit_tokens": 800},
    ],
)
def test_cached_input_is_read_where_endpoints_report_it(reported: dict[str, Any]) -> None:
    assert cached(reported) == 800


def test_reasoning_is_a_part_of_the_output() -> None:
    usage = usage_of(TOKENS | {"completion_tokens_details": {"reasoning_tokens": 300}}, REQUEST, 40)
    assert (usage.output_tokens, usage.reasoning_tokens, usage.estimated_tokens) == (500, 300, 0)


@pytest.mark.parametrize("details", [{}, {"completion_tokens_details": {"reasoning_tokens": 300}}])
def test_reasoning_that_only_the_total_has_counts_as_output(details: dict[str, Any]) -> None:
    usage = usage_of(TOKENS | {"total_tokens": 1800} | details, REQUEST, 40)
    assert (usage.output_tokens, usage.reasoning_tokens) == (800, 300)


def test_no_more_is_cached_or_reasoned_than_there_is() -> None:
    lies = {"prompt_cache_hit_tokens": 10**8, "completion_tokens_details": {"reasoning_tokens": 10**8}}
    usage = usage_of(TOKENS | lies, REQUEST, 40)
    assert (usage.cached_input_tokens, usage.reasoning_tokens) == (1000, 500)


def test_what_is_not_reported_is_estimated_and_says_so() -> None:
    nothing = usage_of(None, REQUEST, 40)
    assert nothing == Usage(input_tokens=100, output_tokens=10, estimated_tokens=110)
    half = usage_of({"prompt_tokens": 1000}, REQUEST, 40)
    assert half == Usage(input_tokens=1000, output_tokens=10, estimated_tokens=10)


NUMBERS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers()))
NAMES = st.sampled_from(
    ["prompt_tokens", "completion_tokens", "total_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens"]
)
DETAILS = st.dictionaries(st.sampled_from(["cached_tokens", "reasoning_tokens"]), NUMBERS)
PLACES = st.sampled_from(["prompt_tokens_details", "completion_tokens_details"])
REPORTS = st.builds(lambda flat, deep: flat | deep, st.dictionaries(NAMES, NUMBERS), st.dictionaries(PLACES, DETAILS))


@given(st.one_of(REPORTS, NUMBERS), st.integers(0, 1000))
def test_no_endpoint_gives_a_budget_back(reported: Any, written_chars: int) -> None:
    usage = usage_of(reported, REQUEST, written_chars)
    assert 0 <= usage.cached_input_tokens <= usage.input_tokens < 10**9
    assert 0 <= usage.reasoning_tokens <= usage.output_tokens < 10**9
    assert 0 <= usage.estimated_tokens <= usage.input_tokens + usage.output_tokens
    assert Prices(1.0, 2.0, 0.1, 3.0).cost_usd(usage) >= 0


USED = Usage(input_tokens=1_000_000, cached_input_tokens=400_000, output_tokens=100_000, reasoning_tokens=60_000)


def test_cached_input_and_reasoning_have_prices_of_their_own() -> None:
    assert Prices(2.0, 10.0, 0.5, 20.0).cost_usd(USED) == pytest.approx(0.6 * 2 + 0.4 * 0.5 + 0.04 * 10 + 0.06 * 20)


def test_without_one_they_cost_what_other_tokens_cost() -> None:
    assert Prices(2.0, 10.0).cost_usd(USED) == pytest.approx(3.0)
    assert Prices(2.0, 10.0, cached_input_usd_per_mtok=0.0).cost_usd(USED) == pytest.approx(2.2)


@pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["cached_input_usd_per_mtok", "reasoning_usd_per_mtok"])
def test_a_price_of_part_of_the_tokens_is_a_price(name: str, price: float) -> None:
    with pytest.raises(ValueError, match="0 or more"):
        Prices(1.0, 1.0, **{name: price})


def test_what_an_endpoint_gets_back_of_its_own_is_estimated_as_text() -> None:
    data = {"items": [{"type": "reasoning", "content": [{"type": "reasoning_text", "text": "x" * 4000}]}]}
    answer = Message(role="assistant", provider_data=ProviderData(provider="here", data=data))
    assert usage_of(None, InferenceRequest("", (answer,), ()), 0).input_tokens > 1000
