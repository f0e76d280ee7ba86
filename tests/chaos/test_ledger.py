"""The ledger tells what is lost from what may be so."""

from __future__ import annotations

from tests.chaos.ledger import FileEntry, Ledger


def test_a_file_has_what_was_acknowledged_last_or_what_was_sent_since_and_never_goes_back() -> None:
    file = FileEntry()
    assert file.seen(None)
    file.sent(b"1")
    assert file.seen(None)
    file.done(b"1")
    assert not file.seen(None)
    file.sent(b"2")
    file.sent(b"3")
    assert file.seen(b"1")
    assert file.seen(b"3")
    assert not file.seen(b"1")
    file.done(b"4")
    assert [file.seen(content) for content in (b"2", b"3", None, b"4")] == [False, False, False, True]


def test_a_line_is_there_once_if_it_was_acknowledged_never_if_it_was_refused_and_else_at_most_once() -> None:
    ledger = Ledger()
    ledger.lines = {"a": "sure", "b": "maybe", "c": "never", "d": "sure"}
    for right in ("a d", "a b d", "b a d"):
        assert ledger.wrong_lines(right.split()) == []
    for wrong in ("a", "a a d", "a b b d", "a c d", "d a", "a d x"):
        assert len(ledger.wrong_lines(wrong.split())) == 1
    assert ledger.wrong_lines(["d", "a"], in_order=False) == []
