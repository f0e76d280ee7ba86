"""How many pooled sandboxes are worth having."""

from __future__ import annotations

from sandbox.engines.sandbox_pool import MEMORY_S, Demand, shared_out


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_without_requests_nothing_is_wanted() -> None:
    assert Demand(Clock()).wanted == 0


def test_what_was_asked_for_while_one_is_made_is_wanted() -> None:
    clock = Clock()
    demand = Demand(clock)
    demand.made(2.0)
    for _ in range(5):
        demand.asked()
    assert demand.wanted == 5
    clock.now_s += 10
    demand.asked()
    assert 1 <= demand.wanted <= 5


def test_a_burst_is_forgotten_by_halves_and_then_one_is_kept_for_some_minutes_and_then_none() -> None:
    clock = Clock()
    demand = Demand(clock)
    for _ in range(40):
        demand.asked()
    seen = []
    for _ in range(int(MEMORY_S) // 20):
        seen.append(demand.wanted)
        clock.now_s += 20
    assert seen == sorted(seen, reverse=True)
    assert (seen[0], seen[3], seen[6]) == (40, 20, 10)
    assert seen[-1] >= 1
    clock.now_s += 1
    assert demand.wanted == 0


def test_one_that_is_asked_for_now_and_then_is_always_there() -> None:
    clock = Clock()
    demand = Demand(clock)
    for _ in range(10):
        demand.asked()
        clock.now_s += MEMORY_S / 2
        assert demand.wanted == 1


def test_what_takes_longer_to_make_is_wanted_in_larger_numbers() -> None:
    def wanted(making_s: float) -> int:
        clock = Clock()
        demand = Demand(clock)
        for _ in range(20):
            demand.made(making_s)
        for _ in range(30):
            demand.asked()
            clock.now_s += 1
        return demand.wanted

    assert wanted(10) > wanted(1) >= 1


def test_a_limit_is_shared_out_in_turns() -> None:
    assert shared_out({}, 5) == {}
    assert shared_out({"a": 2, "b": 3}, 9) == {"a": 2, "b": 3}
    assert shared_out({"a": 100, "b": 1, "c": 3}, 6) == {"a": 3, "b": 1, "c": 2}
    assert shared_out({"a": 1, "b": 1, "c": 1}, 2) == {"a": 1, "b": 1, "c": 0}
    assert shared_out({"a": 3}, 0) == {"a": 0}
