"""Which addresses of a host may be dialled."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Iterable, Sequence

import pytest

import gateway.network.addresses
from gateway.network.addresses import Lookup, Unreachable, may_be_dialled, resolve

PUBLIC = ["93.184.216.34", "1.1.1.1", "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0", "9.255.255.255"]
PUBLIC += ["11.0.0.0", "128.0.0.1", "169.253.255.255", "192.0.1.0", "198.17.255.255", "198.20.0.0", "223.255.255.255"]
PUBLIC += ["168.63.129.15", "2606:2800:220:1:248:1893:25c8:1946", "2620:4f:8000::1", "2a00::1", "2001:200::1"]
PRIVATE = [
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.9.9.9"),
    *("169.254.0.1", "169.254.169.254", "169.254.170.2", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.0.192"),
    *("192.0.2.1", "192.88.99.1", "192.168.0.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1"),
    *("224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "100.100.100.200", "168.63.129.16"),
    *("::", "::1", "::7f00:1", "::5db8:d822", "fe80::1", "febf::1", "fec0::1", "fc00::1", "fd00:ec2::254"),
    *("fd20:ce::254", "ff02::1", "100::1", "2001:db8::1", "3fff::1", "5f00::1", "2001:10::1", "4000::1", "8000::1"),
    *("2002:7f00:1::", "2002:5db8:d822::1", "2001::1", "2001:0:a00:1::1", "64:ff9b::7f00:1", "64:ff9b::5db8:d822"),
    *("64:ff9b:1::a00:1", "::ffff:10.0.0.1", "::ffff:127.0.0.1", "::ffff:169.254.169.254"),
]


def never(address: str, port: int) -> bool:
    return False


def none(address: str, port: int) -> str:
    return ""


def answering(*addresses: str) -> Lookup:
    async def lookup(host: str, port: int) -> Iterable[str]:
        return addresses

    return lookup


async def found(*addresses: str, permits: object = never) -> Sequence[str]:
    assert callable(permits)
    return await resolve("host.test", 443, permits=permits, denies=none, timeout_s=5, lookup=answering(*addresses))


@pytest.mark.parametrize("address", PUBLIC)
async def test_a_public_address_may_be_dialled_as_a_literal_and_as_what_a_name_leads_to(address: str) -> None:
    assert await found(address) == [address]
    assert await resolve(address, 443, permits=never, denies=none, timeout_s=5, lookup=answering()) == [address]


@pytest.mark.parametrize("address", PRIVATE)
async def test_no_other_address_is_dialled_as_a_literal_nor_as_what_a_name_leads_to(address: str) -> None:
    for host in ("host.test", address):
        with pytest.raises(Unreachable) as caught:
            await resolve(host, 443, permits=never, denies=none, timeout_s=5, lookup=answering(address))
        assert caught.value.kind == "private_address"


@pytest.mark.parametrize("address", [address for address in PRIVATE if not address.startswith("::ffff")])
async def test_what_the_operator_names_is_dialled(address: str) -> None:
    assert await found(address, permits=lambda _address, _port: True) == [address]


async def test_the_operator_is_asked_about_that_very_address_and_port() -> None:
    def one(address: str, port: int) -> bool:
        return (address, port) == ("10.0.0.5", 443)

    assert await found("10.0.0.5", permits=one) == ["10.0.0.5"]
    for host, port in (("10.0.0.5", 80), ("10.0.0.6", 443)):
        with pytest.raises(Unreachable, match="a private address, which no rule of the operator names"):
            await resolve(host, port, permits=one, denies=none, timeout_s=5)


async def test_only_the_refused_addresses_of_a_name_are_left_out_and_the_order_stays() -> None:
    many = await found("1.1.1.1", "10.0.0.1", "2a00::1", "169.254.169.254", "1.1.1.1", "9.9.9.9")
    assert many == ["1.1.1.1", "2a00::1", "9.9.9.9"]


@pytest.mark.parametrize("own", ["127.0.0.1", "127.0.0.2"])  # the second leads from the first, as a secondary one does
async def test_an_address_of_the_gateway_itself_is_dialled_where_the_operator_names_it_only(
    monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    special = gateway.network.addresses.special
    monkeypatch.setattr(gateway.network.addresses, "special", lambda one: None if str(one) == own else special(one))
    with pytest.raises(Unreachable, match="an address of the gateway's own machine, 127") as caught:
        await found(own)
    assert caught.value.kind == "private_address"
    assert not may_be_dialled("host.test", own, 443, never, none)
    assert await found(own, "1.1.1.1") == ["1.1.1.1"]
    named = await found(own, "1.1.1.1", permits=lambda one, port: (one, port) == (own, 443))
    assert named == [own, "1.1.1.1"]


async def test_a_mapped_address_is_its_ipv4_address() -> None:
    assert await found("::ffff:1.1.1.1", "1.1.1.1") == ["1.1.1.1"]
    asked: list[str] = []
    assert await found("::ffff:10.0.0.1", permits=lambda address, _: asked.append(address) or True)
    assert asked == ["10.0.0.1"]


@pytest.mark.parametrize("prefix", ["64:ff9b::", "64:ff9b:1::"])
async def test_an_operator_who_names_a_translator_does_not_name_what_is_behind_it(prefix: str) -> None:
    def translator(address: str, port: int) -> bool:
        return address.startswith("64:ff9b:")

    assert await found(f"{prefix}101:101", permits=translator) == [f"{prefix}101:101"]
    with pytest.raises(Unreachable):
        await found(f"{prefix}a00:1", permits=translator)
    both = await found(f"{prefix}a00:1", permits=lambda address, _: translator(address, 0) or address == "10.0.0.1")
    assert both == [f"{prefix}a00:1"]


@pytest.mark.parametrize(
    "address, carried",
    [
        ("64:ff9b:1:a9fe:a9:fe00:808:808", "169.254.169.254"),  # read by a /48 translator
        ("64:ff9b:1:8a9:fe:a9fe:808:808", "169.254.169.254"),  # by a /56
        ("64:ff9b:1:808:a9:fea9:fe08:808", "169.254.169.254"),  # by a /64
        ("64:ff9b:1:808:8:800:a9fe:a9fe", "169.254.169.254"),  # by a /96
        ("64:ff9b:1:a00:0:100::", "10.0.0.1"),
        ("64:ff9b:1::1", "0.0.0.1"),
    ],
)
async def test_of_a_local_translator_each_address_that_it_may_read_has_to_pass(address: str, carried: str) -> None:
    def translator(address: str, port: int) -> bool:
        return address.startswith("64:ff9b:1:")

    with pytest.raises(Unreachable):
        await found(address, permits=translator)
    asked: list[str] = []
    await found(address, permits=lambda address, _: asked.append(address) or True)
    assert carried in asked
    for public in ("64:ff9b:1:808:8:800::", "64:ff9b:1:8:8:808::", "64:ff9b:1::808:808"):
        assert await found(public, permits=translator) == [public]


@pytest.mark.parametrize("answers", [(), ("fe80::1%eth0", "2a00::1%1"), ("nonsense",)])
async def test_a_name_without_an_address_that_can_be_judged_is_unresolved(answers: tuple[str, ...]) -> None:
    with pytest.raises(Unreachable) as caught:
        await found(*answers)
    assert caught.value.kind == "unresolved"


@pytest.mark.parametrize("error", [socket.gaierror(-2, "Name or service not known"), UnicodeError("label too long")])
async def test_a_failed_look_up_is_unresolved(error: Exception) -> None:
    async def fails(host: str, port: int) -> Iterable[str]:
        raise error

    with pytest.raises(Unreachable, match=r"host\.test does not resolve") as caught:
        await resolve("host.test", 443, permits=never, denies=none, timeout_s=5, lookup=fails)
    assert caught.value.kind == "unresolved"


async def test_a_look_up_that_stalls_ends_in_time() -> None:
    async def stalls(host: str, port: int) -> Iterable[str]:
        await asyncio.Event().wait()
        return ()

    with pytest.raises(Unreachable, match=r"not resolved within 0\.01 s") as caught:
        await resolve("host.test", 443, permits=never, denies=none, timeout_s=0.01, lookup=stalls)
    assert caught.value.kind == "timeout"


async def test_the_machine_s_own_look_up_is_used_and_what_it_says_is_checked() -> None:
    with pytest.raises(Unreachable, match="localhost leads to a loopback address"):
        await resolve("localhost", 80, permits=never, denies=none, timeout_s=30)
    named = await resolve("localhost", 80, permits=lambda _address, _port: True, denies=none, timeout_s=30)
    assert set(named) <= {"127.0.0.1", "::1"}
    # Another spelling of an address is none that was judged, and what it leads to is checked all the same.
    with pytest.raises(Unreachable, match="loopback"):
        await resolve("0x7f.1", 80, permits=never, denies=none, timeout_s=30)


async def test_what_is_denied_is_not_dialled_public_or_not() -> None:
    def denies(address: str, port: int) -> str:
        return "no-cdn" if (address, port) in {("1.1.1.1", 443), ("10.0.0.1", 443)} else ""

    def lookup(*addresses: str, host: str = "host.test", port: int = 443) -> Awaitable[Sequence[str]]:
        answers = answering(*addresses)
        return resolve(host, port, permits=lambda *_: True, denies=denies, timeout_s=5, lookup=answers)

    assert await lookup("1.1.1.1", "9.9.9.9") == ["9.9.9.9"]
    assert await lookup("1.1.1.1", port=80) == ["1.1.1.1"]
    for address in ("1.1.1.1", "::ffff:1.1.1.1", "10.0.0.1", "64:ff9b::101:101", "2002:a00:1::"):
        with pytest.raises(Unreachable, match="which a rule denies") as caught:
            await lookup(address)
        assert (caught.value.kind, caught.value.rule) == ("denied_address", "no-cdn")
    # As it is written it was judged already, and allowed; what it carries was not.
    assert await lookup(host="1.1.1.1") == ["1.1.1.1"]
    with pytest.raises(Unreachable, match="which a rule denies"):
        await lookup(host="64:ff9b::101:101")
