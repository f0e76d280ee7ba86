"""Where the snapshots of all tenants are: a directory that all gateways of a database share, or an S3 bucket."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from gateway.config.snapshot_settings import SnapshotSettings
from gateway.snapshots.bucket import REMOVAL_S, Bucket
from gateway.snapshots.bucket_objects import BucketObjects
from gateway.snapshots.bucket_owner import BucketOwner
from gateway.snapshots.directory_objects import DirectoryObjects
from gateway.snapshots.locks import DatabaseLocks, FileLocks
from gateway.snapshots.snapshot_directory import SnapshotDirectory
from gateway.storage.database import DatabaseIdentity
from gateway.storage.lock_store import LockStore


class Place(Protocol):
    """The snapshots of one instance's tenants, whose names are digests here."""

    def of(self, name: str) -> SnapshotDirectory:
        """Return a tenant's snapshots."""
        ...

    def names(self) -> Sequence[str]:
        """Return the tenants that have anything here. Blocking."""
        ...


@dataclass(frozen=True)
class OnDisk:
    """A directory of the disk."""

    directory: Path

    def of(self, name: str) -> SnapshotDirectory:
        own = self.directory / name
        return SnapshotDirectory(DirectoryObjects(own), FileLocks(own))

    def names(self) -> Sequence[str]:
        return sorted(path.name for path in self.directory.iterdir()) if self.directory.exists() else ()


@dataclass(frozen=True)
class InBucket:
    """A prefix of an S3 bucket. Gateways without a shared disk have their locks in the database."""

    bucket: Bucket
    prefix: str
    owner: BucketOwner
    locks: LockStore

    @classmethod
    def opened(
        cls, bucket: Bucket, prefix: str, instance: str, database: DatabaseIdentity, locks: LockStore
    ) -> "InBucket":
        """Return an instance's part of a bucket, below the prefix of the configuration."""
        own = f"{prefix}{instance}/"
        return cls(bucket, own, BucketOwner(bucket, own, database), locks)

    def of(self, name: str) -> SnapshotDirectory:
        locks = DatabaseLocks(self.locks, name)
        objects = BucketObjects(self.bucket, f"{self.prefix}{name}/", partial(self._check, locks))
        return SnapshotDirectory(objects, locks)

    def names(self) -> Sequence[str]:
        return list(self.bucket.directories(self.prefix))

    def _check(self, locks: DatabaseLocks) -> None:
        self.owner.check()
        locks.check(REMOVAL_S)


def bucket_of(settings: SnapshotSettings, path: Callable[[Path], Path]) -> Bucket:
    """Return the bucket of the settings, without asking it anything. Raises Misconfigured. Blocking."""
    return Bucket(
        settings.bucket_name,
        endpoint_url=settings.endpoint_url,
        region=settings.region,
        credentials_file=settings.credentials_file and path(settings.credentials_file),
        ca_file=settings.ca_file and path(settings.ca_file),
    )
