"""The section `snapshots`: an S3 bucket for the files of snapshots, instead of `snapshots_dir`."""

import re
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from gateway.config.section import Section, is_loopback

# As S3 has them, and a prefix that needs no escapes.
_BUCKET = re.compile(r"s3://(?P<name>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?P<prefix>(/[A-Za-z0-9!_.*'()-]+)*)/?")


class SnapshotSettings(Section):
    """Where the files of snapshots are, if not in `snapshots_dir`. Credentials are those of AWS's usual chain."""

    bucket: str | None = Field(
        default=None,
        description="s3://BUCKET/PREFIX, which all gateways of a database share",
        examples=["s3://acme/airlock"],
    )
    endpoint_url: str | None = Field(default=None, description="of another service than AWS that speaks S3")
    region: str | None = Field(default=None, description="unset means that of the environment")
    credentials_file: Path | None = Field(
        default=None,
        description="as ~/.aws/credentials; unset means the environment, or a role of the service account or machine",
    )
    ca_file: Path | None = Field(default=None, description="the authorities that vouch for endpoint_url, in PEM format")
    insecure_http: bool = Field(
        default=False,
        description="allow http:// beyond this machine, where others on the network may read and change snapshots",
    )

    @field_validator("bucket")
    @classmethod
    def _is_a_bucket(cls, bucket: str | None) -> str | None:
        if bucket is not None and not _BUCKET.fullmatch(bucket):
            raise ValueError("a bucket is written as s3://BUCKET or s3://BUCKET/PREFIX")
        return bucket

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.bucket is None and self.model_fields_set:
            raise ValueError("snapshots: it needs a bucket; without one, snapshots are in snapshots_dir")
        if self.endpoint_url is not None:
            try:
                url = urlsplit(self.endpoint_url)
                host = url.hostname or ""
                _ = url.port
            except ValueError as error:
                raise ValueError(f"endpoint_url: {error}") from error
            if url.scheme not in ("http", "https") or not host or url.username or url.path.strip("/") or url.query:
                raise ValueError("endpoint_url: it is written as https://HOST:PORT, without a path or credentials")
            if url.scheme == "http" and not self.insecure_http and not is_loopback(host):
                raise ValueError("endpoint_url: use https://, or set insecure_http: true if this network is trusted")
        return self

    @property
    def bucket_name(self) -> str:
        return self._parts()["name"]

    @property
    def prefix(self) -> str:
        """What the names of all objects begin with: "" or "PREFIX/"."""
        prefix = self._parts()["prefix"].strip("/")
        return f"{prefix}/" if prefix else ""

    def _parts(self) -> re.Match[str]:
        found = _BUCKET.fullmatch(self.bucket or "")
        assert found is not None, "checked by _is_a_bucket"  # noqa: S101
        return found
