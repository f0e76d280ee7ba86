"""The checks of where snapshots are stored, by `airlock doctor`: a directory, or an S3 bucket."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
from typing import TYPE_CHECKING

from gateway.cli.finding import Finding
from gateway.errors import AirlockError, Misconfigured, Unavailable
from gateway.snapshots.bucket_owner import BucketOwner
from gateway.snapshots.objects import Missing
from gateway.snapshots.places import bucket_of

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.config.config import Config
    from gateway.snapshots.bucket import Bucket
    from gateway.storage.database import DatabaseIdentity

_VERSIONS_FIX = (
    "turn versioning off, or let a lifecycle rule expire noncurrent versions: until then, deleted objects, also "
    "those of an erased tenant, can be restored from their versions"
)


async def snapshots_finding(config: Config) -> Finding:
    """Try the directory or the bucket. In a bucket an object is written, read, listed and removed."""
    if config.snapshots.bucket is None:
        return _directory(config.resolved_snapshots_dir())
    return await asyncio.to_thread(_bucket, config, config.snapshots.bucket)


def _directory(directory: Path) -> Finding:
    there = next(path for path in (directory, *directory.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            return Finding("snapshots", "ok", f"stored in {directory}")
    except OSError as error:
        fix = f"make snapshots_dir writable: {directory}"
        return Finding("snapshots", "failed", f"cannot write to {there}: {error.strerror}", fix)


def _bucket(config: Config, shown: str) -> Finding:
    try:
        bucket = bucket_of(config.snapshots, config.path)
    except Misconfigured as error:
        return Finding("snapshots", "failed", f"{shown} cannot be opened", str(error))
    for what, attempt in (("write, read, list and remove", _probe), ("end unfinished uploads in", _probe_uploads)):
        try:
            attempt(bucket, f"{config.snapshots.prefix}doctor-{secrets.token_hex(8)}")
        except (AirlockError, Missing) as error:
            said = bucket.problem_of(error)
            return Finding("snapshots", "failed", f"cannot {what} {shown}: {said.what}", said.fix)
    with contextlib.suppress(Unavailable):  # not everybody may ask
        if bucket.versioned():
            return Finding("snapshots", "warning", f"stored in {shown}, which keeps versions", _VERSIONS_FIX)
    return Finding("snapshots", "ok", f"stored in {shown}")


def _probe(bucket: Bucket, key: str) -> None:
    data = secrets.token_bytes(32)
    bucket.put(key, data)
    try:
        read, _ = bucket.range(key, 0, 64)
        if read != data or list(bucket.keys(key)) != [(key, len(data))]:
            raise Unavailable("it does not return what was written just now")
    finally:
        bucket.remove([key], lambda: None)


def _probe_uploads(bucket: Bucket, key: str) -> None:
    upload = bucket.begin_upload(key)
    list(bucket.uploads(key))
    bucket.give_up_upload(key, upload)


async def bucket_owner_findings(config: Config, instance: str, database: DatabaseIdentity) -> list[Finding]:
    """Return what a start would refuse: a bucket in use by another database's gateways. Changes nothing."""
    what = "database of snapshots"
    try:
        bucket = await asyncio.to_thread(bucket_of, config.snapshots, config.path)
        owner = BucketOwner(bucket, f"{config.snapshots.prefix}{instance}/", database)
        await asyncio.to_thread(owner.refuse_copy)
    except Misconfigured as error:
        return [Finding(what, "failed", f"another database uses {config.snapshots.bucket}", str(error))]
    except Unavailable:
        return []  # snapshots_finding says why
    return []
