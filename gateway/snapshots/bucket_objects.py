"""BucketObjects: a tenant's objects in an S3 bucket, whose names begin with a prefix of the tenant's own."""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from gateway.errors import AirlockError
from gateway.snapshots.bucket import Bucket
from gateway.snapshots.objects import PART_BYTES


class BucketObjects:
    """Objects under a prefix of a bucket; `check` raises if nothing may be removed now."""

    # The way to a bucket is long, and threads wait most of the time.
    threads = 16

    def __init__(self, bucket: Bucket, prefix: str, check: Callable[[], None]) -> None:
        self._bucket, self._prefix, self._check = bucket, prefix, check

    def put(self, name: str, parts: Iterable[bytes], *, last: bool = False) -> int:  # noqa: ARG002 - all are durable
        """Put an object at once, or one of more than a part as an upload of several, which makes it appear at once."""
        key, size_bytes = self._prefix + name, 0
        begun = bytearray()
        upload, done = "", list[Mapping[str, Any]]()
        try:
            for part in parts:
                begun += part
                while len(begun) > PART_BYTES:
                    upload = upload or self._bucket.begin_upload(key)
                    data = bytes(memoryview(begun)[:PART_BYTES])
                    done.append(self._bucket.upload_part(key, upload, len(done) + 1, data))
                    del begun[:PART_BYTES]
                    size_bytes += PART_BYTES
            if upload:
                done.append(self._bucket.upload_part(key, upload, len(done) + 1, bytes(begun)))
                self._bucket.end_upload(key, upload, done)
            else:
                self._bucket.put(key, bytes(begun))
        except BaseException:
            with contextlib.suppress(AirlockError):  # the next sweep ends it
                if upload:
                    self._bucket.give_up_upload(key, upload)
            raise
        return size_bytes + len(begun)

    def size(self, name: str) -> int | None:
        return self._bucket.size(self._prefix + name)

    def get(self, name: str, part_bytes: int = PART_BYTES) -> Iterator[bytes]:
        """Yield an object by requests for its parts, so that no connection waits for a slow reader."""
        begin = whole = 0
        while begin == 0 or begin < whole:
            data, whole = self._bucket.range(self._prefix + name, begin, part_bytes)
            if not data:
                return
            yield data
            begin += len(data)

    def names(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        for key, size_bytes in self._bucket.keys(self._prefix + prefix):
            yield key.removeprefix(self._prefix), size_bytes

    def remove(self, names: Collection[str]) -> None:
        self._bucket.remove([self._prefix + name for name in names], self._check)

    def tidy(self) -> None:
        for key, upload in self._bucket.uploads(self._prefix):
            self._check()
            self._bucket.give_up_upload(key, upload)

    def erase(self) -> None:
        self.tidy()
        self._bucket.remove((self._prefix + name for name, _ in self.names()), self._check)

    def takes(self, size_bytes: int) -> int:
        return size_bytes
