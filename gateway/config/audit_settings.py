"""The section `audit`: where the audit is anchored outside the database."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from gateway.config.section import Section


class AnchorSettings(Section):
    """Where the signed heads of the audit's chains are written: to `file` or `command`."""

    file: Path | None = Field(default=None, description="JSON lines are appended to it")
    command: tuple[str, ...] | None = Field(
        default=None, min_length=1, description="a program and its arguments; it reads JSON lines from stdin"
    )
    key_file: Path = Field(description="an Ed25519 private key in PEM format that only the gateway can read")
    every_s: float = Field(default=60.0, ge=1, le=86_400, description="how often changed heads are written")

    @model_validator(mode="after")
    def _has_one_place(self) -> Self:
        if (self.file is None) == (self.command is None):
            raise ValueError("set either file or command: where anchors are written")
        return self


class AuditSettings(Section):
    """The audit."""

    anchor: AnchorSettings | None = Field(
        default=None,
        description="reveals a chain that the database's owner cut off or replaced",
        examples=["`anchor: {file: /mnt/log/airlock-anchors.jsonl, key_file: anchor.key}`"],
    )
