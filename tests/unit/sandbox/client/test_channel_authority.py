"""The authority of an instance's channels: one key in one file, and certificates with one name each."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from sandbox.client.channel_authority import ChannelAuthority
from sandbox.tls.identity import gateway_name, pooled_name, sandbox_name

NAME = sandbox_name("i1", "s1", ("tenant-a", "thread-a"), 1)


def test_the_key_is_made_once_however_many_start_and_its_owner_alone_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "state" / "channels.pem"
    with ThreadPoolExecutor(8) as starting:
        made = list(starting.map(lambda _: ChannelAuthority.open(path, "i1").ca_pem, range(8)))
    assert len(set(made)) == 1
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["channels.pem"]


@pytest.mark.parametrize("content, why", [("nonsense", "not a private key"), ("", "not a private key")])
def test_a_file_with_something_else_is_refused(tmp_path: Path, content: str, why: str) -> None:
    path = tmp_path / "channels.pem"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ValueError, match=why):
        ChannelAuthority.open(path, "i1")


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "channels.pem"
    ChannelAuthority.open(path, "i1")
    path.chmod(0o640)
    with pytest.raises(ValueError, match="others may read it"):
        ChannelAuthority.open(path, "i1")


def test_an_authority_that_has_expired_is_refused(tmp_path: Path) -> None:
    long_ago = datetime.now(UTC) - timedelta(days=4000)
    ChannelAuthority.open(tmp_path / "channels.pem", "i1", now=lambda: long_ago)
    with pytest.raises(ValueError, match="has expired"):
        ChannelAuthority.open(tmp_path / "channels.pem", "i1")


def test_each_sandbox_has_a_key_of_its_own_and_a_certificate_with_its_name_alone(tmp_path: Path) -> None:
    authority = ChannelAuthority.open(tmp_path / "channels.pem", "i1")
    one, other = authority.sandbox_identity(NAME), authority.sandbox_identity(NAME)
    assert one.partition(b"-----END")[0] != other.partition(b"-----END")[0]
    certificate = x509.load_pem_x509_certificate(one)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [name.value for name in names] == [NAME]


def test_the_gateways_certificate_is_renewed_before_it_expires(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    authority = ChannelAuthority.open(tmp_path / "channels.pem", "i1", now=lambda: now)
    first = authority.contexts("a/1")
    now += timedelta(hours=17)
    assert authority.contexts("a/1") is first
    now += timedelta(hours=2)
    assert authority.contexts("a/1") is not first


@pytest.mark.parametrize("part", ["", "a/b", "a b", "a\n", "é", "a" * 129, "..//x"])
def test_what_could_make_one_name_look_like_another_is_refused(part: str) -> None:
    for make in (
        lambda: gateway_name(part),
        lambda: pooled_name("i1", part),
        lambda: sandbox_name("i1", "s1", (part, "b"), 1),
        lambda: sandbox_name("i1", "s1", ("a", part), 1),
    ):
        with pytest.raises(ValueError, match="cannot be the name"):
            make()
    with pytest.raises(ValueError, match="cannot be the name"):
        sandbox_name("i1", "s1", ("a", "b"), -1)


def test_an_authority_goes_from_one_process_to_another_as_pem() -> None:
    made = ChannelAuthority.new("i1")
    again = ChannelAuthority.of(made.pem, "i1")
    assert again.ca_pem == made.ca_pem
    with pytest.raises(ValueError, match="not a private key and a certificate"):
        ChannelAuthority.of(made.ca_pem.encode(), "i1")


def test_an_identity_is_fresh_while_it_is_of_the_authority_and_has_a_month_left() -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    made = ChannelAuthority.new("i1", now=lambda: now)
    identity = made.sandbox_identity(pooled_name("i1", "pooled"))
    assert made.is_fresh(identity)
    assert not ChannelAuthority.new("i1", now=lambda: now).is_fresh(identity), "of another authority"
    assert not made.is_fresh(b"")
    now += timedelta(days=340)
    assert not made.is_fresh(identity)
