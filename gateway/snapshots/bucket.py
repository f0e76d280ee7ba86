"""Bucket: the requests to an S3 bucket, each with a time limit, and its errors as the gateway's, with how to fix them.

The only module that imports botocore, and on first use: it is in the extra `s3`. Neither credentials nor names of
objects are logged.
"""

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from gateway.errors import AirlockError, Misconfigured, NoSpace, Unavailable
from gateway.snapshots.objects import Missing

# Sixteen threads of a snapshot, and a few snapshots at a time.
_CONNECTIONS = 64
_CONNECT_TIMEOUT_S, _READ_TIMEOUT_S = 5.0, 15.0
REMOVAL_S = 40.0
"""A removal that was sent takes effect within this time: connecting, sending and the answer."""
_TRIES = 3
_FIRST_RETRY_S = 0.2
# As many as one request may name.
_KEYS = 1000
_MISSING = ("NoSuchKey", "404", "NotFound")
_EMPTY = "InvalidRange"
_DENIED = (
    *("AccessDenied", "403", "Forbidden", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"),
    *("InvalidToken", "TokenRefreshRequired", "AllAccessDisabled", "AccountProblem", "InvalidObjectState"),
)
_ELSEWHERE = ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301")
_FULL = ("QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "InsufficientStorage", "507")
_SLOW = ("SlowDown", "ServiceUnavailable", "503", "RequestLimitExceeded", "Throttling", "RequestTimeout", "429")
_AGAIN = (*_SLOW, "InternalError", "500", "502", "504")
log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Problem:
    """What is wrong with a bucket, and how to fix it."""

    what: str
    fix: str
    full: bool = False

    def raised(self) -> AirlockError:
        """Return it as an error for a caller, who learns neither the bucket nor how to fix it."""
        if self.full:
            return NoSpace("the gateway's bucket is full, and keeps no more snapshots; delete some", disk="gateway")
        return Unavailable(f"the gateway's bucket for snapshots cannot be used: {self.what}; see its log")


class Bucket:
    """A bucket, by the names of its objects. Blocking; for threads, several at once."""

    def __init__(
        self,
        name: str,
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
        credentials_file: Path | None = None,
        ca_file: Path | None = None,
    ) -> None:
        try:
            from botocore import config, exceptions, parsers, session  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise Misconfigured(
                "snapshots.bucket: it needs the extra s3: `pip install 'airlock-agent-gateway[s3]'`"
            ) from error
        self.name, self._endpoint_url, self._region = name, endpoint_url, region
        self._errors, self._not_s3 = exceptions, parsers.ResponseParserError
        # It says where it found credentials, and at a lower level what it sends.
        logging.getLogger("botocore").setLevel(logging.WARNING)
        opened = session.Session()
        if credentials_file is not None:
            opened.set_config_variable("credentials_file", str(credentials_file))
        common: dict[str, Any] = {
            "connect_timeout": _CONNECT_TIMEOUT_S,
            "read_timeout": _READ_TIMEOUT_S,
            "max_pool_connections": _CONNECTIONS,
            # The server compares what arrives with its SHA-256. Other checksums are not known to every server.
            "s3": {"addressing_style": "path" if endpoint_url else "auto", "payload_signing_enabled": True},
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        }

        def client(tries: int) -> Any:
            retries = {"mode": "standard", "total_max_attempts": tries}
            return opened.create_client(
                "s3",
                region_name=region,
                endpoint_url=endpoint_url,
                verify=str(ca_file) if ca_file else None,
                config=config.Config(**common, retries=retries),
            )

        try:
            self._client, self._once = client(_TRIES), client(1)
        except (exceptions.BotoCoreError, ValueError) as error:
            raise Misconfigured(f"snapshots: {error}") from error

    @contextlib.contextmanager
    def errors(self, *, reading: bool = False) -> Iterator[None]:
        """Raise the bucket's errors as the gateway's; when `reading` an object that does not exist, Missing."""
        try:
            yield
        except (self._errors.ClientError, self._errors.BotoCoreError, self._not_s3, OSError) as error:
            if reading and _code(error) in _MISSING:
                raise Missing from None
            problem = self.problem(error)
            log.warning(
                "the bucket for snapshots cannot be used", bucket=self.name, error=problem.what, fix=problem.fix
            )
            raise problem.raised() from error

    def problem_of(self, raised: Exception) -> Problem:
        """Return what is behind an error that a request raised."""
        return self.problem(raised.__cause__) if isinstance(raised.__cause__, Exception) else Problem(str(raised), "")

    def problem(self, error: Exception) -> Problem:
        """Return what an error says of the bucket."""
        errors, code, where = self._errors, _code(error), self._endpoint_url or "AWS"
        match error:
            case errors.NoCredentialsError() | errors.PartialCredentialsError() | errors.CredentialRetrievalError():
                fix = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a role, or snapshots.credentials_file"
                return Problem("there are no credentials", fix)
            case errors.SSLError():
                fix = "set snapshots.ca_file to the authority of the endpoint's certificate"
                return Problem(f"the certificate of {where} is not trusted", fix)
            case errors.ConnectTimeoutError() | errors.ReadTimeoutError():
                return Problem(
                    f"{where} does not answer in time", "check the endpoint, and the way of the network to it"
                )
            case errors.HTTPClientError() | errors.ConnectionError() | errors.NoRegionError() | OSError():
                fix = "check snapshots.endpoint_url, snapshots.region, and the way of the network to it"
                return Problem(f"{where} cannot be reached ({type(error).__name__})", fix)
        if code == "NoSuchBucket":
            return Problem(f"there is no bucket {self.name}", f"create it, or correct snapshots.bucket ({where})")
        if code in _DENIED:
            fix = "allow these credentials what docs/snapshots.md lists, or give others"
            return Problem(f"access to bucket {self.name} is denied ({code})", fix)
        if code in _ELSEWHERE:
            region = _region_in(error)
            said = f"set snapshots.region: {region}" if region else "set snapshots.region to the bucket's"
            return Problem(f"bucket {self.name} is in another region", said)
        if code in _FULL:
            return Problem(f"bucket {self.name} is full", "raise its quota, or delete snapshots", full=True)
        if code in _SLOW:
            return Problem(f"{where} is overloaded ({code})", "try again later, or raise the bucket's limits")
        fix = "check that snapshots.endpoint_url is an S3 server, and see its log"
        return Problem(f"{where} answers {code or type(error).__name__}", fix)

    # --- requests ---

    def put(self, key: str, data: bytes) -> None:
        with self.errors():
            self._client.put_object(Bucket=self.name, Key=key, Body=data)

    def begin_upload(self, key: str) -> str:
        """Begin an upload in parts; return its id."""
        with self.errors():
            return str(self._client.create_multipart_upload(Bucket=self.name, Key=key)["UploadId"])

    def upload_part(self, key: str, upload: str, number: int, data: bytes) -> Mapping[str, Any]:
        """Upload a part; return what end_upload needs to know of it."""
        with self.errors():
            done = self._client.upload_part(Bucket=self.name, Key=key, UploadId=upload, PartNumber=number, Body=data)
            return {"PartNumber": number, "ETag": done["ETag"]}

    def end_upload(self, key: str, upload: str, parts: Collection[Mapping[str, Any]]) -> None:
        with self.errors():
            whole = {"Parts": list(parts)}
            self._client.complete_multipart_upload(Bucket=self.name, Key=key, UploadId=upload, MultipartUpload=whole)

    def give_up_upload(self, key: str, upload: str) -> None:
        with self.errors():
            try:
                self._client.abort_multipart_upload(Bucket=self.name, Key=key, UploadId=upload)
            except self._errors.ClientError as error:
                if _code(error) != "NoSuchUpload":
                    raise

    def uploads(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Yield the name and the id of each upload that has not ended."""
        for page in self._pages("list_multipart_uploads", prefix):
            for one in page.get("Uploads", ()):
                yield str(one["Key"]), str(one["UploadId"])

    def size(self, key: str) -> int | None:
        try:
            with self.errors(reading=True):
                return int(self._client.head_object(Bucket=self.name, Key=key)["ContentLength"])
        except Missing:
            return None

    def range(self, key: str, begin: int, size_bytes: int) -> tuple[bytes, int]:
        """Return so many bytes of an object, or fewer at its end, and the size of the whole. Raises Missing.

        A connection that breaks off is replaced.
        """
        wanted = f"bytes={begin}-{begin + size_bytes - 1}"
        for wait_s in _waits():
            with self.errors(reading=True):
                try:
                    found = self._client.get_object(Bucket=self.name, Key=key, Range=wanted)
                    with contextlib.closing(found["Body"]) as body:
                        if found["ContentLength"] > size_bytes:
                            raise Unavailable("the server of the bucket for snapshots does not know ranges")
                        data = body.read()  # and not a part of it, whose end would not be noticed to be early
                    return data, int(str(found.get("ContentRange", f"/{len(data)}")).rpartition("/")[2])
                except self._errors.ClientError as error:
                    if _code(error) != _EMPTY:
                        raise
                    return b"", 0
                except self._errors.BotoCoreError:
                    if wait_s is None:
                        raise
            time.sleep(wait_s)
        raise AssertionError("unreachable")

    def keys(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield the name and the size of each object under a prefix, in order."""
        for page in self._pages("list_objects_v2", prefix):
            for one in page.get("Contents", ()):
                yield str(one["Key"]), int(one["Size"])

    def directories(self, prefix: str) -> Iterator[str]:
        """Yield the names of the "directories" in a prefix, without it."""
        for page in self._pages("list_objects_v2", prefix, Delimiter="/"):
            for one in page.get("CommonPrefixes", ()):
                yield str(one["Prefix"]).removeprefix(prefix).rstrip("/")

    def remove(self, keys: Iterable[str], check: Callable[[], None]) -> None:
        """Remove objects; `check` raises if that must not be sent now, and is asked before each request."""
        coming = iter(keys)
        while batch := list(itertools.islice(coming, _KEYS)):
            self._remove(batch, check)

    def _remove(self, keys: Collection[str], check: Callable[[], None]) -> None:
        which = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        for wait_s in _waits():
            check()
            with self.errors():
                try:
                    failed = self._once.delete_objects(Bucket=self.name, Delete=which).get("Errors", ())
                    for one in failed:
                        raise self._errors.ClientError({"Error": dict(one)}, "DeleteObjects")
                except (self._errors.ClientError, self._errors.BotoCoreError) as error:
                    if wait_s is None or (_code(error) or _AGAIN[0]) not in _AGAIN:
                        raise
                else:
                    return
            time.sleep(wait_s)

    def versioned(self) -> bool:
        """Return whether the bucket keeps versions of what is removed."""
        with self.errors():
            return "Status" in self._client.get_bucket_versioning(Bucket=self.name)

    def _pages(self, operation: str, prefix: str, **more: str) -> Iterator[Mapping[str, Any]]:
        pages = iter(self._client.get_paginator(operation).paginate(Bucket=self.name, Prefix=prefix, **more))
        while True:
            with self.errors():
                page = next(pages, None)
            if page is None:
                return
            yield page


def _waits() -> Iterator[float | None]:
    """Yield how long to wait after each try that fails; None for the last."""
    yield from (_FIRST_RETRY_S * 2**n for n in range(_TRIES - 1))
    yield None


def _code(error: Exception) -> str:
    answer = getattr(error, "response", None)
    return str(answer.get("Error", {}).get("Code", "")) if isinstance(answer, dict) else ""


def _region_in(error: Exception) -> str:
    answer: Mapping[str, Any] = getattr(error, "response", {})
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return str(answer.get("Error", {}).get("Region") or headers.get("x-amz-bucket-region", ""))
