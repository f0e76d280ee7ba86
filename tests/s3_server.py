"""An S3 server for tests: moto's, in a process or a thread of its own."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass

import botocore.session
from moto.server import ThreadedMotoServer

BUCKET = "snapshots"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}


@dataclass(frozen=True)
class S3Server:
    """A server, with an empty bucket."""

    url: str

    def client(self) -> object:
        session = botocore.session.Session()
        session.set_credentials("test", "test")
        return session.create_client("s3", region_name="us-east-1", endpoint_url=self.url)

    def names(self, bucket: str = BUCKET) -> list[str]:
        found = self.client().list_objects_v2(Bucket=bucket)  # type: ignore[attr-defined]
        return [one["Key"] for one in found.get("Contents", ())]

    def uploads(self, bucket: str = BUCKET) -> list[str]:
        found = self.client().list_multipart_uploads(Bucket=bucket)  # type: ignore[attr-defined]
        return [one["Key"] for one in found.get("Uploads", ())]


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run a server in a thread until the block ends."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        running = S3Server(f"http://{host}:{port}")
        running.client().create_bucket(Bucket=BUCKET)  # type: ignore[attr-defined]
        yield running
    finally:
        server.stop()
