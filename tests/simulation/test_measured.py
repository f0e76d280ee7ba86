"""The model beside a real gateway and a real PostgreSQL, in one run: only ratios count, and this machine is noisy."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.simulation import measuring
from tests.simulation.validation import predicted_calls_per_s

_WITHIN = 2.5


@pytest.mark.full
def test_the_model_predicts_what_eight_clients_of_a_real_gateway_get() -> None:
    found, _ = asyncio.run(measuring.measured())
    for name, kind in (("execute", "writing"), ("read_file", "reading")):
        one = found[f"{name}, 8 clients"]
        processors, disk_s = os.cpu_count() or 1, measuring.sync_s()
        predicted = predicted_calls_per_s(one, kind, clients=8, processors=processors, sync_s=disk_s)
        assert 1 / _WITHIN < predicted / one.calls_per_s < _WITHIN, (name, predicted, one)
