"""What follows from the numbers of a workspace's disk, on a clock that is set by hand."""

from __future__ import annotations

import pytest

from sandbox.daemon.limits.disk_ledger import DiskLedger, Free
from sandbox.daemon.limits.disk_use import DiskUse

MIB = 1024 * 1024
PLENTY: Free = (10_000 * MIB, 1_000_000)


def use(size_mib: float, files: int = 1, *, hidden: bool = False) -> DiskUse:
    found = DiskUse()
    found.size_bytes, found.files, found.hidden = size_mib * MIB, files, hidden
    return found


def less(size_mib: int, files: int = 0) -> Free:
    """So much less is free than there was plenty."""
    return PLENTY[0] - size_mib * MIB, PLENTY[1] - files


class Kept(DiskLedger):
    """A ledger of a workspace of 100 MiB and 1,000 files, looked at, whose counts take a moment."""

    def __init__(self, reserve_mib: int = 0) -> None:
        self.now_s = 1000.0
        super().__init__(100 * MIB, 1000, reserve_mib * MIB, lambda: self.now_s)
        self.look(PLENTY)

    def count(self, found: DiskUse, *, running: bool = False, took_s: float = 0.01) -> None:
        shrunk = self.begin_count()
        self.now_s += took_s
        self.take_count(found, shrunk, running=running)


def test_what_the_disk_shrinks_by_is_added_up_and_what_others_free_takes_nothing_from_it() -> None:
    kept = Kept()
    kept.count(use(10))
    for shrunk_mib in (50, 0, 50):
        kept.look(less(shrunk_mib))
    assert kept.may_be_past()
    kept.count(use(60))
    assert not kept.may_be_past()
    kept.look_away()
    kept.look(less(5000))
    assert not kept.may_be_past()


def test_what_has_shrunk_is_counted_again_now_and_then_though_nothing_seems_to_be_wrong() -> None:
    """Others that free space hide what is written here."""
    kept = Kept()
    kept.count(use(1))
    kept.now_s += 5.1
    assert not kept.is_count_due(PLENTY)
    kept.look(less(1))
    assert kept.is_count_due(less(1))
    kept.count(use(1))
    kept.look(less(2))
    kept.now_s += 4.9
    assert not kept.is_count_due(less(2))
    kept.now_s += 0.2
    assert kept.is_count_due(less(2))
    kept.count(use(1), took_s=1)
    kept.look(less(3))
    kept.now_s += 99
    assert not kept.is_count_due(less(3))
    kept.now_s += 1.1
    assert kept.is_count_due(less(3))


def test_what_may_be_past_is_counted_after_a_pause_and_what_may_be_far_at_once() -> None:
    kept = Kept()
    kept.count(use(90), took_s=1)
    kept.look(less(50))
    kept.now_s += 8.9
    assert kept.may_be_past()
    assert not kept.is_count_due(less(50))
    kept.now_s += 0.2
    assert kept.is_count_due(less(50))
    kept.count(use(90), took_s=1)
    kept.look(less(400))
    assert kept.is_count_due(less(400))


def test_what_is_hidden_from_a_count_is_charged_with_all_that_the_disk_shrank_by() -> None:
    kept = Kept()
    kept.count(use(10, 10))
    kept.look(less(80, 700))
    kept.count(use(10, 10, hidden=True))
    assert kept.used == (90 * MIB, 710)
    kept.look(less(101, 700))
    kept.count(use(10, 10, hidden=True))
    assert kept.used == (111 * MIB, 710)
    assert kept.is_past(PLENTY)
    kept.count(use(10, 10))
    assert kept.used == (10 * MIB, 10)


def test_a_count_while_tool_code_runs_never_lowers_the_known_use() -> None:
    """A file that is moved to where was counted already is not seen."""
    kept = Kept()
    kept.count(use(60, 600))
    kept.look(less(30, 300))
    kept.count(use(5, 5), running=True)
    assert kept.used == (60 * MIB, 600)
    assert (kept.fits(10 * MIB, 100), kept.fits(10 * MIB + 1, 0), kept.fits(0, 101)) == (True, False, False)
    kept.look(less(42, 300))
    assert kept.may_be_past()
    kept.count(use(75, 700), running=True)
    assert kept.used == (75 * MIB, 700)
    assert kept.may_be_past()
    kept.count(use(5, 5))
    assert kept.used == (5 * MIB, 5)
    assert not kept.may_be_past()


def test_what_was_past_the_limit_may_go_back_and_not_come_again() -> None:
    kept = Kept()
    kept.count(use(200))
    assert not kept.is_past(PLENTY)
    kept.count(use(150))
    kept.count(use(152))
    assert kept.is_past(PLENTY)
    kept.allow_current_use()
    kept.count(use(152))
    assert not kept.is_past(PLENTY)


def test_while_the_disk_is_short_each_end_lowers_what_there_may_be_and_none_raises_it() -> None:
    short = less(9_500)
    kept = Kept(reserve_mib=600)
    kept.look(short)
    kept.count(use(10))
    assert not kept.is_past(short)
    kept.count(use(30))
    assert kept.is_past(short)
    # Ended for growing, and left more than there was: what there was remains the measure.
    kept.lower_floor()
    assert kept.is_past_floor(short)
    kept.count(use(20))
    assert not kept.is_past_floor(short)
    # Ended again, and left less: that is the measure from then on.
    kept.count(use(2))
    kept.lower_floor()
    kept.count(use(20))
    assert kept.is_past_floor(short)
    kept.update_floor(short)
    assert kept.is_past_floor(short)
    kept.update_floor(PLENTY)
    assert not kept.is_past_floor(short)


def test_below_half_of_the_reserve_less_growth_is_let_be() -> None:
    short, spent = less(9_500), less(9_750)
    kept = Kept(reserve_mib=600)
    kept.count(use(10))
    assert not kept.is_past(short)
    kept.count(use(12))
    assert not kept.is_past_floor(short)
    assert kept.is_past_floor(spent)
    assert (kept.is_spent(short), kept.is_spent(spent)) == (False, True)


def test_the_less_is_left_of_the_limit_or_of_the_disk_the_sooner_it_is_looked_at_again() -> None:
    assert Kept().interval_s() == 0.05
    kept = DiskLedger(2**40, 0, 1000 * MIB)
    kept.look(PLENTY)
    assert kept.interval_s() == 0.25
    kept.look((1200 * MIB, 1_000_000))
    assert kept.interval_s() == pytest.approx(0.1)


def test_hiding_matters_only_with_a_suspicion() -> None:
    kept = Kept(reserve_mib=600)
    kept.count(use(10))
    assert not kept.is_suspected()
    kept.look(less(9_500))
    assert kept.is_suspected()
    kept.count(use(10))
    kept.look(PLENTY)
    assert not kept.is_suspected()


def test_limits_of_nothing_are_none() -> None:
    kept = DiskLedger(0, 0, 0)
    assert (kept.used, kept.counted) == ((0, 0), False)
    assert kept.fits(2**50, 2**50)
    assert not kept.is_short((0, 0))
