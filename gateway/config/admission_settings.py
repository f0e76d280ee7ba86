"""How much may be under way at once in one gateway process: the section `admission` of the configuration."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from gateway.config.section import Section


class AdmissionSettings(Section):
    """Bounds of a process, and of each tenant within them."""

    calls_at_once: int = Field(default=256, ge=1, description="calls at work, of all tenants")
    calls_at_once_under_load: int | None = Field(
        default=None,
        ge=1,
        description="calls that began in the last 5 s while all processors are in use; 8 a processor unless given",
    )
    calls_at_once_per_tenant: int = Field(default=64, ge=1)
    queue_per_tenant: int = Field(default=256, ge=0, description="calls that wait behind those at work")
    queue_wait_s: float = Field(default=2.0, gt=0, description="after that long a call that waits is refused")
    streams_per_tenant: int = Field(
        default=256, ge=1, description="open streams that wait: watching, following, moving files"
    )
    request_bytes: int = Field(
        default=512 * 1024 * 1024, ge=1, description="requests and messages of streams in memory, in all"
    )
    request_bytes_per_tenant: int = Field(default=64 * 1024 * 1024, ge=1)
    uploads: int = Field(default=128, ge=1, description="files that are being uploaded, in all; more wait")
    uploads_per_tenant: int = Field(default=16, ge=1)
    answer_bytes: int = Field(
        default=1024 * 1024 * 1024, ge=1, description="answers that clients have not read yet, in all"
    )
    answer_bytes_per_tenant: int = Field(
        default=128 * 1024 * 1024, ge=1, description="past it new calls of the tenant are refused"
    )

    @model_validator(mode="after")
    def _one_fits_into_all(self) -> Self:
        if self.calls_at_once_per_tenant > self.calls_at_once:
            raise ValueError("calls_at_once_per_tenant is more than calls_at_once: no tenant would get so many")
        return self
