"""What stands around an engine or a keeper leaves all that it does not override to it, as it was asked."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from sandbox.engines.engine import Engine
from sandbox.engines.engine_decorator import EngineDecorator
from sandbox.keeper.keeper import Keeper
from sandbox.keeper.keeper_decorator import KeeperDecorator

AROUND: list[tuple[Any, Any, str]] = [
    (around, protocol, name)
    for around, protocol in ((EngineDecorator, Engine), (KeeperDecorator, Keeper))
    for name in dir(protocol)
    if not name.startswith("_")
]


class Inner:
    """Notes what it is asked for and returns what it was made with, awaited where the protocol says so."""

    def __init__(self, protocol: Any, name: str, answer: object) -> None:
        self.asked: list[tuple[tuple[object, ...], dict[str, object]]] = []
        method = getattr(protocol, name)

        def ask(*args: object, **options: object) -> object:
            self.asked.append((args, options))
            return answer

        async def ask_later(*args: object, **options: object) -> object:
            return ask(*args, **options)

        setattr(self, name, ask_later if inspect.iscoroutinefunction(method) else ask)


@pytest.mark.parametrize("around, protocol, name", AROUND)
async def test_each_method_asks_the_inner_one_with_the_same_arguments_and_returns_its_answer(
    around: Any, protocol: Any, name: str
) -> None:
    answer = object()
    if isinstance(inspect.getattr_static(protocol, name), property):
        assert getattr(around(type("Inner", (), {name: answer})()), name) is answer
        return
    inner = Inner(protocol, name, answer)
    parameters = list(inspect.signature(getattr(protocol, name)).parameters.values())[1:]
    options = {one.name: object() for one in parameters if one.kind is one.KEYWORD_ONLY}
    args = tuple(object() for one in parameters if one.kind is not one.KEYWORD_ONLY)
    returned = getattr(around(inner), name)(*args, **options)
    if inspect.isawaitable(returned):
        returned = await returned
    assert inner.asked == [(args, options)]
    nothing = inspect.signature(getattr(protocol, name)).return_annotation == "None"
    assert returned is (None if nothing else answer)


@pytest.mark.parametrize("around, protocol, name", AROUND)
def test_each_method_has_the_protocol_s_arguments_and_what_is_taken_for_those_that_are_left_out(
    around: Any, protocol: Any, name: str
) -> None:
    theirs, own = inspect.getattr_static(protocol, name), inspect.getattr_static(around, name)
    if not isinstance(theirs, property):
        assert inspect.signature(own) == inspect.signature(theirs)
