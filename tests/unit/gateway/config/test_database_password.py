"""The database's password from a file, as containers are handed their secrets."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import make_url

from gateway.config.config import Config
from gateway.errors import Misconfigured


def url_of(directory: Path, url: str, password: bytes | None = b"secret\n") -> str:
    if password is not None:
        (directory / "password").write_bytes(password)
    path = directory / "airlock.yaml"
    path.write_text(
        f"database_url: {url}\ndatabase_password_file: password\ntenants: {{t: {{policy: t.yaml}}}}\n", encoding="utf-8"
    )
    return Config.load(path).resolved_database_url()


@pytest.mark.parametrize("password", ["secret", "p@ss:/%?#[ w\u00f6rd"])
@pytest.mark.parametrize("url", ["postgresql://a@db:5432/airlock", "postgresql://a@/airlock?host=/run/postgresql"])
def test_the_password_of_the_file_is_the_one_that_the_database_gets(tmp_path: Path, url: str, password: str) -> None:
    found, bare = make_url(url_of(tmp_path, url, f"{password}\n".encode())), make_url(url)
    assert found.password == password
    assert found == bare.set(password=password)


@pytest.mark.parametrize(
    "url, password, reported",
    [
        ("postgresql://a:b@db/x", b"secret", "remove one"),
        ("postgresql://db/x", b"secret", "USER@HOST"),
        ("postgresql://a@db/x", b"", "one line with the password"),
        ("postgresql://a@db/x", b"a\nb\n", "one line with the password"),
        ("postgresql://a@db/x", b"\xff", "not UTF-8"),
        ("postgresql://a@db/x", None, "No such file"),
        ("sqlite:///x.db", b"secret", "database_password_file: it needs `database_url"),
    ],
)
def test_what_is_wrong_is_reported_and_never_the_password(
    tmp_path: Path, url: str, password: bytes | None, reported: str
) -> None:
    with pytest.raises(Misconfigured, match=reported) as error:
        url_of(tmp_path, url, password)
    assert "secret" not in str(error.value)
