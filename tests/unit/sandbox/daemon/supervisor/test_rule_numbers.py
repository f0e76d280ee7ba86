"""The numbers of file rules: each means the same to the server and to init."""

from __future__ import annotations

import errno

import pytest

from sandbox.daemon.supervisor.control_wire import FILE_RULES_LIMIT, FILE_RULES_LIMIT_BYTES
from sandbox.daemon.supervisor.spawner import RuleNumbers


class Init:
    """What init knows of the numbers; a message to it can fail."""

    def __init__(self) -> None:
        self.rules: dict[int, bytes] = {}
        self.deaf = False

    def announce(self, number: int, rules: bytes) -> None:
        if self.deaf:
            raise OSError(errno.ENOBUFS, "no memory")
        self.rules[number] = rules


def test_a_number_that_could_not_be_announced_is_not_given_to_two_rules() -> None:
    init = Init()
    numbers = RuleNumbers(init.announce)
    used = [b"r/%d" % index for index in range(FILE_RULES_LIMIT)]
    for rules in used:
        with numbers.used(rules):
            pass
    init.deaf = True
    with pytest.raises(OSError, match="no memory"), numbers.used(b"r/other"):
        pass
    init.deaf = False
    for rules in [b"r/other", *used[1:], *used]:
        with numbers.used(rules) as number:
            assert init.rules[number] == rules


def test_rules_that_do_not_fit_one_order_are_refused_before_init_cuts_them() -> None:
    init = Init()
    numbers = RuleNumbers(init.announce)
    with numbers.used(b"r" * FILE_RULES_LIMIT_BYTES):
        pass
    with pytest.raises(OSError, match="too long"), numbers.used(b"r" * (FILE_RULES_LIMIT_BYTES + 1)):
        pass
    assert len(init.rules) == 1
