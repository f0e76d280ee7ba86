"""The models of one run: one client for equal settings, and none left open."""

from __future__ import annotations

import pytest

from gateway.errors import Misconfigured
from gateway.model_settings import ModelSettings
from gateway.models import Models


async def test_equal_settings_share_a_client_and_all_are_closed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    models = Models()
    one = models.of(ModelSettings(name="a", base_url="http://127.0.0.1:1/v1"))
    same = models.of(ModelSettings(name="a", base_url="http://127.0.0.1:1/v1"))
    other = models.of(ModelSettings(name="b", base_url="http://127.0.0.1:1/v1"))
    assert one is same
    assert one is not other
    await models.close()
    assert [model._client.is_closed() for model in (one, other)] == [True, True]


async def test_a_model_without_a_key_is_told_when_it_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    models = Models()
    with pytest.raises(Misconfigured, match="NO_SUCH_KEY"):
        models.of(ModelSettings(api_key_env="NO_SUCH_KEY"))
    await models.close()
