"""What was read last is kept, and never more of it than was said."""

from __future__ import annotations

from gateway.policy.parts import cut
from gateway.policy.recent import Recent


def _kept(limit_bytes: int) -> tuple[Recent[str, str], list[str]]:
    return Recent(limit_bytes, lambda key, _value: len(key)), []


def test_what_is_kept_is_not_made_again() -> None:
    recent, made = _kept(100)
    for _ in range(3):
        assert recent.get("a", lambda: made.append("a") or "A") == "A"  # type: ignore[func-returns-value]
    assert made == ["a"]
    assert (recent.find("a"), recent.find("b")) == ("A", None)


def test_the_oldest_goes_when_there_is_too_much() -> None:
    recent, made = _kept(32)
    for name in ("aa", "bb", "aa", *(f"{place:02}" for place in range(15)), "aa", "bb"):
        recent.get(name, lambda name=name: made.append(name) or name)  # type: ignore[misc]
    assert made.count("aa") == 1 + ("aa" in made[2:])
    assert made.count("bb") == 2
    assert recent.kept_bytes <= 32


def test_a_large_value_is_not_kept() -> None:
    recent, _ = _kept(32)
    recent.get("x" * 3, str)
    assert recent.kept_bytes == 0
    recent.get("xx", str)
    assert recent.kept_bytes == 2


def test_a_command_is_cut_into_the_same_parts_each_time() -> None:
    for effects in (True, False, True):
        parts = cut("execute", {"command": "cat a | grep b > c"}, effects=effects).parts
        assert len(parts) == (4 if effects else 3)
