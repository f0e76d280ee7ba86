"""docs/models.md: its blocks load, its endpoints resolve, and its settings are those of a model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.models.openai_model import OpenAIModel
from gateway.config.model_settings import ModelSettings

PAGE = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
BLOCKS = [yaml.safe_load(block)["model"] for block in re.findall(r"```yaml\n(model:.*?)```", PAGE, re.DOTALL)]


@pytest.mark.parametrize("block", BLOCKS, ids=[block.get("base_url", "openai") for block in BLOCKS])
def test_a_block_of_the_page_is_a_model_that_can_be_opened(
    block: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    for name in re.findall(r"\b[A-Z]+(?:_[A-Z]+)*_API_KEY\b", str(block)):
        monkeypatch.setenv(name, "k")
    model = ModelSettings.model_validate(block)
    OpenAIModel(
        model.resolved_name(),
        base_url=model.base_url,
        api_key=model.resolved_api_key(),
        settings=model.request_settings(),
        connection=model.connection(),
    )


def test_every_setting_of_the_table_exists() -> None:
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ", PAGE, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(named) > 20
    assert named <= ModelSettings.model_fields.keys()
