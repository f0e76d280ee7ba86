"""What a tenant holds is counted, and given back."""

from __future__ import annotations

import pytest

from gateway.errors import Overloaded
from gateway.tenancy.quotas import TenantLimit


def test_a_tenant_past_its_share_is_refused_and_others_are_not() -> None:
    shares = TenantLimit(2, "calls")
    with shares.hold("a"), shares.hold("a"):
        with pytest.raises(Overloaded, match="2 calls of this tenant"), shares.hold("a"):
            pass
        with shares.hold("b"):
            pass
    with shares.hold("a"), shares.hold("a"):
        pass


def test_what_fails_is_given_back() -> None:
    shares = TenantLimit(1, "calls")
    for _ in range(3):
        with pytest.raises(RuntimeError), shares.hold("a"):
            raise RuntimeError
