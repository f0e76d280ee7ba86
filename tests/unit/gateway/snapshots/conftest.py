"""Objects in a directory and in a bucket, for the tests that both pass."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.snapshots.bucket import Bucket
from gateway.snapshots.bucket_objects import BucketObjects
from gateway.snapshots.directory_objects import DirectoryObjects
from gateway.snapshots.objects import Objects
from tests.s3_server import BUCKET, CREDENTIALS, S3Server, s3_server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def bucket(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return Bucket(BUCKET, endpoint_url=s3.url, region="us-east-1")


@pytest.fixture(params=["directory", "bucket"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    if request.param == "directory":
        return DirectoryObjects(tmp_path / "a")
    return BucketObjects(request.getfixturevalue("bucket"), f"{secrets.token_hex(4)}/a/", lambda: None)
