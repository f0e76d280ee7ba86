"""The section `admission`: how many calls and bytes one gateway process takes at once."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from gateway.config.section import Section


class AdmissionSettings(Section):
    """Limits of a process, and of each tenant within it."""

    calls_at_once: int = Field(default=256, ge=1, description="calls in progress, of all tenants")
    calls_at_once_under_load: int | None = Field(
        default=None,
        ge=1,
        description="calls started in the last 5 s while all processors are busy; unset means 8 per processor",
    )
    calls_at_once_per_tenant: int = Field(default=64, ge=1)
    queue_per_tenant: int = Field(default=256, ge=0, description="calls that may wait in the queue")
    queue_wait_s: float = Field(default=2.0, gt=0, description="a call that waits longer is refused")
    streams_per_tenant: int = Field(default=256, ge=1, description="open streams that watch, follow or move files")
    request_bytes: int = Field(default=512 * 1024 * 1024, ge=1, description="requests in memory, of all tenants")
    request_bytes_per_tenant: int = Field(default=64 * 1024 * 1024, ge=1)
    uploads: int = Field(default=128, ge=1, description="concurrent file uploads, of all tenants; more wait")
    uploads_per_tenant: int = Field(default=16, ge=1)
    answer_bytes: int = Field(default=1024 * 1024 * 1024, ge=1, description="answers that clients have not read yet")
    answer_bytes_per_tenant: int = Field(
        default=128 * 1024 * 1024, ge=1, description="above it new calls of the tenant are refused"
    )

    @model_validator(mode="after")
    def _one_fits_into_all(self) -> Self:
        if self.calls_at_once_per_tenant > self.calls_at_once:
            raise ValueError("calls_at_once_per_tenant is more than calls_at_once")
        return self
