"""BucketOwner: which database's gateways use an instance's part of a bucket.

A copied database has the instance id of its original. Its gateways would take the original's snapshots for remains and
remove them. So each gateway renews an object that names its database, and none removes anything under another's name.
A name that was not renewed for half an hour is replaced: the database was moved or restored.
"""

import contextlib
import json
import time

import structlog

from gateway.errors import Misconfigured, Unavailable
from gateway.snapshots.bucket import Bucket
from gateway.snapshots.objects import Missing
from gateway.storage.database import DatabaseIdentity
from gateway.support.clock import NowUs, now_us

RENEW_S = 600.0
_VALID_S = 1800.0
_US_PER_S = 1_000_000
_READ_BYTES = 4096
log = structlog.get_logger(__name__)


class BucketOwner:
    """Blocking; for threads."""

    def __init__(self, bucket: Bucket, prefix: str, database: DatabaseIdentity, clock: NowUs = now_us) -> None:
        self._bucket, self._database, self._clock = bucket, database, clock
        self._key = f"{prefix}database"
        self._valid_until_s = 0.0

    def claim(self) -> None:
        """Write that this database uses the bucket. Raises Misconfigured while another does, and Unavailable."""
        asked_s = time.monotonic()
        said = self.refuse_copy()
        if said is not None and said.id != self._database.id:
            log.warning("the database was moved or restored", before=said.shown)
        own = {"id": self._database.id, "shown": self._database.shown, "at_us": self._clock()}
        self._bucket.put(self._key, json.dumps(own).encode())
        self._valid_until_s = asked_s + _VALID_S

    def check(self) -> None:
        """Raise Unavailable unless this database uses the bucket."""
        if time.monotonic() > self._valid_until_s:
            try:
                self.claim()
            except Misconfigured as error:
                log.error("snapshots cannot be stored", error=str(error))  # noqa: TRY400 - it is the operator's
                raise Unavailable("another gateway uses the bucket for snapshots; see this one's log") from error

    def refuse_copy(self) -> DatabaseIdentity | None:
        """Return the database that uses the bucket, or did; Misconfigured if it is another one that does."""
        with contextlib.suppress(Missing, ValueError, TypeError, KeyError):
            said = json.loads(self._bucket.range(self._key, 0, _READ_BYTES)[0])
            holder = DatabaseIdentity(str(said["id"]), str(said["shown"]))
            if holder.id != self._database.id and int(said["at_us"]) + _VALID_S * _US_PER_S > self._clock():
                raise Misconfigured(
                    f"bucket {self._bucket.name} is in use by a gateway whose database is {holder.shown}; this "
                    f"gateway's is {self._database.shown}, a copy with the same instance id, so both would change "
                    "the same snapshots. Give a copy a bucket or prefix of its own. If this database replaces the "
                    f"other, stop that one's gateways and wait {_VALID_S / 60:.0f} minutes, or remove {self._key} there"
                )
            return holder
        return None
