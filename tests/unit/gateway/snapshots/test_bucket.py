"""A bucket: what is wrong with it is said in one line with the fix, and whose it is."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from structlog.testing import capture_logs

from gateway.cli.doctor_snapshots import snapshots_finding
from gateway.config.config import Config
from gateway.errors import Misconfigured, NoSpace, Unavailable
from gateway.snapshots import bucket as bucket_module
from gateway.snapshots import bucket_owner
from gateway.snapshots.bucket import Bucket
from gateway.snapshots.bucket_owner import BucketOwner
from gateway.snapshots.objects import Missing
from gateway.storage.database import DatabaseIdentity
from tests.s3_server import BUCKET, CREDENTIALS, S3Server

MINE, COPY = DatabaseIdentity("1", "the original"), DatabaseIdentity("2", "a copy")


class Answers(BaseHTTPRequestHandler):
    """Gives every request the next of the answers, or the last one again: a status, an error code, a region."""

    answers: list[tuple[int, str, str]]
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, code, region = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        text = f"<Error><Code>{code}</Code><Message>secret-message</Message><Region>{region}</Region></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text) if code else 0))
        self.end_headers()
        self.wfile.write(text if code else b"")

    do_POST = do_GET = do_PUT  # noqa: N815 - as http.server names them

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def fault() -> Iterator[tuple[type[Answers], str]]:
    class Own(Answers):
        answers: ClassVar = [(200, "", "")]

    server = ThreadingHTTPServer(("127.0.0.1", 0), Own)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Own, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(bucket_module, "_FIRST_RETRY_S", 0.01)


@pytest.mark.parametrize(
    "answer, what, fix",
    [
        ((404, "NoSuchBucket", ""), "there is no bucket", "create it"),
        ((403, "AccessDenied", ""), "is denied", "docs/snapshots.md"),
        ((403, "SignatureDoesNotMatch", ""), "is denied", "docs/snapshots.md"),
        ((400, "AuthorizationHeaderMalformed", "eu-west-3"), "another region", "region: eu-west-3"),
        ((400, "ExpiredToken", ""), "is denied", "docs/snapshots.md"),
        ((418, "Teapot", ""), "answers Teapot", "log"),
        ((404, "", ""), "answers 404", "is an S3 server"),
    ],
)
def test_what_is_wrong_with_a_bucket_is_said_with_the_fix_and_only_to_the_operator(
    fault: tuple[type[Answers], str], answer: tuple[int, str, str], what: str, fix: str
) -> None:
    answers, url = fault
    answers.answers = [answer]
    with capture_logs() as logs, pytest.raises(Unavailable, match="see its log") as raised:
        Bucket("b-name", endpoint_url=url, region="us-east-1").put("a", b"1")
    assert what in logs[-1]["error"]
    assert fix in logs[-1]["fix"]
    assert "secret-message" not in str(raised.value)
    assert "secret-message" not in str(logs)
    assert str(raised.value).count("\n") == 0


def test_a_server_of_something_else_is_an_error_with_the_fix(fault: tuple[type[Answers], str]) -> None:
    answers, url = fault
    answers.answers = [(200, "no xml<", "")]
    with capture_logs() as logs, pytest.raises(Unavailable):
        list(Bucket("b-name", endpoint_url=url, region="us-east-1").keys("a"))
    assert "is an S3 server" in logs[-1]["fix"]


def test_a_full_bucket_is_no_space_and_a_slow_one_is_asked_again(fault: tuple[type[Answers], str]) -> None:
    answers, url = fault
    bucket = Bucket("b-name", endpoint_url=url, region="us-east-1")
    answers.answers = [(507, "XMinioStorageFull", "")]
    with pytest.raises(NoSpace):
        bucket.put("a", b"1")
    answers.answers = [(503, "SlowDown", ""), (200, "", "")]
    bucket.put("a", b"1")
    answers.answers = [(503, "SlowDown", ""), (200, "", "")]
    bucket.remove(["a"], lambda: None)


def test_what_must_not_be_removed_now_is_asked_before_each_try(fault: tuple[type[Answers], str]) -> None:
    answers, url = fault
    answers.answers = [(503, "SlowDown", "")]
    asked: list[int] = []

    def check() -> None:
        asked.append(1)
        if len(asked) == 2:
            raise Unavailable("the lock is lost")

    with pytest.raises(Unavailable, match="lock is lost"):
        Bucket("b-name", endpoint_url=url, region="us-east-1").remove(["a"], check)
    assert len(asked) == 2


def test_an_endpoint_that_is_not_there_or_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_module, "_READ_TIMEOUT_S", 0.2)
    monkeypatch.setattr(bucket_module, "_TRIES", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent_url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with capture_logs() as logs, pytest.raises(Unavailable):
            Bucket(BUCKET, endpoint_url=silent_url, region="us-east-1").put("a", b"1")
        assert "does not answer in time" in logs[-1]["error"]
    with capture_logs() as logs, pytest.raises(Unavailable):
        Bucket(BUCKET, endpoint_url=silent_url, region="us-east-1").put("a", b"1")
    assert "cannot be reached" in logs[-1]["error"]
    assert "endpoint_url" in logs[-1]["fix"]


def test_credentials_come_from_the_environment_or_a_file(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with capture_logs() as logs, pytest.raises(Unavailable):
        Bucket(BUCKET, endpoint_url=s3.url, region="us-east-1").put("a", b"1")
    assert "no credentials" in logs[-1]["error"]
    file = tmp_path / "credentials"
    file.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n")
    named = Bucket(BUCKET, endpoint_url=s3.url, region="us-east-1", credentials_file=file)
    named.put("a", b"1")
    named.remove(["a"], lambda: None)


def test_a_copy_of_the_database_is_refused_until_the_original_is_gone(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_us = 1_000_000_000_000
    prefix = f"{secrets.token_hex(4)}/"
    mine, copy = (BucketOwner(bucket, prefix, who, lambda: now_us) for who in (MINE, COPY))
    mine.claim()
    mine.claim()
    mine.check()
    with pytest.raises(Misconfigured, match="the original"):
        copy.claim()
    with pytest.raises(Unavailable, match="another gateway"):
        copy.check()
    now_us += round(bucket_owner._VALID_S * 1_000_000)
    copy.claim()
    copy.check()
    with pytest.raises(Misconfigured, match="a copy"):
        mine.claim()


async def test_the_doctor_tries_the_bucket_and_leaves_nothing_in_it(s3: S3Server) -> None:
    prefix = secrets.token_hex(4)

    def config(name: str = BUCKET) -> Config:
        snapshots = {"bucket": f"s3://{name}/{prefix}", "endpoint_url": s3.url, "region": "us-east-1"}
        return Config.model_validate({"snapshots": snapshots, "tenants": {"a": {"policy": "managed"}}})

    found = await snapshots_finding(config())
    assert (found.state, found.detail) == ("ok", f"stored in s3://{BUCKET}/{prefix}")
    assert not any(key.startswith(prefix) for key in [*s3.names(), *s3.uploads()])
    found = await snapshots_finding(config("nowhere"))
    assert found.state == "failed"
    assert "there is no bucket nowhere" in found.detail
    assert "create it" in found.fix
    s3.client().create_bucket(Bucket="versions")  # type: ignore[attr-defined]
    versioning = {"Status": "Enabled"}
    s3.client().put_bucket_versioning(Bucket="versions", VersioningConfiguration=versioning)  # type: ignore[attr-defined]
    found = await snapshots_finding(config("versions"))
    assert (found.state, "lifecycle rule" in found.fix) == ("warning", True)


@pytest.mark.parametrize(
    "snapshots, problem",
    [
        ({"bucket": "acme"}, "s3://BUCKET"),
        ({"bucket": "s3://Acme/x"}, "s3://BUCKET"),
        ({"bucket": "s3://acme/a//b"}, "s3://BUCKET"),
        ({"region": "x"}, "needs a bucket"),
        ({"bucket": "s3://acme", "endpoint_url": "http://minio:9000"}, "insecure_http"),
        ({"bucket": "s3://acme", "endpoint_url": "https://" + "a:b" + "@minio:9000"}, "without a path or credentials"),
        ({"bucket": "s3://acme", "endpoint_url": "minio:9000"}, "https://HOST:PORT"),
    ],
)
def test_a_bucket_that_cannot_be_meant_is_refused(snapshots: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Config.model_validate({"snapshots": snapshots, "tenants": {"a": {"policy": "managed"}}})


def test_snapshots_are_in_one_place() -> None:
    both = {"snapshots": {"bucket": "s3://acme"}, "snapshots_dir": "x", "tenants": {"a": {"policy": "managed"}}}
    with pytest.raises(ValueError, match="remove one"):
        Config.model_validate(both)


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "botocore", None)
    with pytest.raises(Misconfigured, match=r"\[s3\]"):
        Bucket(BUCKET)


def test_an_object_that_is_not_there_is_missing(bucket: Bucket) -> None:
    with pytest.raises(Missing):
        bucket.range("nothing", 0, 10)
