"""Where the audit is anchored outside the database: the section `audit` of the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from gateway.config.section import Section


class AnchorSettings(Section):
    """Where the heads of the audit's chains are written, signed. One of `file` and `command` is named."""

    file: Path | None = Field(default=None, description="JSON lines are appended to it")
    command: tuple[str, ...] | None = Field(
        default=None, min_length=1, description="a program and its arguments; it is given JSON lines as its input"
    )
    key_file: Path = Field(description="an Ed25519 private key as PEM, which only the gateway can read")
    every_s: float = Field(default=60.0, ge=1, le=86_400, description="how often heads that moved are written")

    @model_validator(mode="after")
    def _has_one_place(self) -> Self:
        if (self.file is None) == (self.command is None):
            raise ValueError("name one of file and command: where anchors are written")
        return self


class AuditSettings(Section):
    """The audit."""

    anchor: AnchorSettings | None = Field(
        default=None,
        description="what shows a chain that was cut off or replaced by whoever owns the database",
        examples=["`anchor: {file: /mnt/log/airlock-anchors.jsonl, key_file: anchor.key}`"],
    )
