"""What happens to runs when their gateway stops or is lost."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gateway.config.section import Section


class RunsSettings(Section):
    """How runs are hosted."""

    on_stop: Literal["hand_over", "cancel"] = Field(
        default="hand_over",
        description="an orderly stop hands live runs over to the next gateway that serves; cancel ends them",
    )


class RecoverySettings(Section):
    """How soon a gateway counts as lost."""

    lease_s: float = Field(
        default=5.0, ge=2.0, le=300.0, description="a gateway that does not renew its lease for this long is lost"
    )
