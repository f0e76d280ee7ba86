"""Opens the place of snapshots, and keeps gateways of another database away from it."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial

import structlog

from gateway.composition.foundation import Foundation
from gateway.errors import AirlockError, Unavailable
from gateway.serving.directory_locks import locked_for
from gateway.snapshots.bucket_owner import RENEW_S
from gateway.snapshots.places import InBucket, OnDisk, Place, bucket_of
from gateway.storage.database import DatabaseIdentity
from gateway.storage.lock_store import LockStore
from gateway.support.background import Periodic

# A start does not wait longer for a bucket.
_CLAIM_S = 10.0
log = structlog.get_logger(__name__)


async def open_place(stack: AsyncExitStack, base: Foundation, database: DatabaseIdentity) -> Place:
    """Open the directory or the bucket of the configuration; Misconfigured if another database's gateways use it.

    One that cannot be used now is a warning: the operator can fix it while the gateway runs.
    """
    settings = base.config.snapshots
    if settings.bucket is None:
        directory = base.config.resolved_snapshots_dir()
        try:
            stack.enter_context(locked_for(directory, base.instance, database))
        except OSError as error:
            log.warning("no snapshot can be taken", directory=str(directory), error=str(error))
        return OnDisk(directory / base.instance)
    bucket = await asyncio.to_thread(bucket_of, settings, base.config.path)
    place = InBucket.opened(bucket, settings.prefix, base.instance, database, LockStore(base.database))
    try:
        async with asyncio.timeout(_CLAIM_S):  # the thread goes on, and so does the start
            await asyncio.to_thread(place.owner.claim)
    except (Unavailable, TimeoutError) as error:
        reason = str(error) or "it does not answer in time"
        log.warning("no snapshot can be taken", bucket=settings.bucket, error=reason)
    claim = partial(asyncio.to_thread, place.owner.claim)
    renewing = Periodic(claim, RENEW_S, "the bucket for snapshots is not renewed", (AirlockError,))
    await stack.enter_async_context(renewing.running("bucket for snapshots", at_once=False))
    return place
