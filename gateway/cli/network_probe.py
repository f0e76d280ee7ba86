"""What `airlock network verify` runs inside a sandbox: it tries what must fail there, and what the proxy is for.

Its text is sent to `python3 -`, so it uses only the standard library, of Python 3.8 or later. The first argument is
PORT/SECRET: `verify` listens on PORT of its own machine's loopback, as another tenant's forward would, and sends SECRET
to each client. The others are the HOST:PORT to reach through the proxy. It prints
[{"name", "expected", "got", "ok"}, ...] as JSON.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import struct
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

_ROUTES, _RESOLV_CONF = Path("/proc/net/route"), Path("/etc/resolv.conf")
_DIRECT_S = 2.0
_LOOKUP_S = 5.0
_PROXY_S = 30.0
_UPPER = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
VARIABLES = (*_UPPER, *(name.lower() for name in _UPPER), "grpc_proxy", "NODE_USE_ENV_PROXY")

_PUBLIC = [("1.1.1.1", 443), ("8.8.8.8", 443), ("9.9.9.9", 80)]
_PRIVATE = [("10.0.0.1", 80), ("172.16.0.1", 80), ("192.168.0.1", 80), ("192.168.1.1", 80), ("100.64.0.1", 80)]
_METADATA = [("169.254.169.254", 80), ("169.254.170.2", 80), ("100.100.100.200", 80), ("168.63.129.16", 80)]
_IPV6 = [("2606:4700:4700::1111", 443), ("2001:4860:4860::8888", 443), ("fd00:ec2::254", 80), ("fd00::1", 80)]
# Where engines usually put the host.
_HOST = ["172.17.0.1", "172.18.0.1", "172.19.0.1", "10.0.2.2", "10.88.0.1", "192.168.65.1", "192.168.65.254"]
_HOST_PORTS = (22, 2375, 7443)
_LOOKUPS = ("example.com", "host.docker.internal", "metadata.google.internal")

_REFUSED = "403 policy_denied"
_UNNAMED = ["unnamed-by-any-rule.invalid:443", "1.1.1.1.unnamed-by-any-rule.invalid:80"]
_PROXY_METADATA = ["169.254.169.254:80", "[fd00:ec2::254]:80", "[::ffff:169.254.169.254]:80"]
# Port 9 is one that a rule is not likely to name.
_PROXY_LOOPBACK = ["127.0.0.1:9", "[::1]:9", "0.0.0.0:9", "0x7f.1:9", "[::ffff:127.0.0.1]:9"]
_PROXY_PRIVATE = ["10.0.0.1:9", "172.16.0.1:9", "192.168.0.1:9", "100.64.0.1:9", "[fd00::1]:9", "[64:ff9b::a00:1]:9"]


def no_way_to(addresses: list[tuple[str, int]], kind: int = socket.SOCK_STREAM) -> str:
    """Return the first address that something can be sent to, in words; "" if the kernel knows no way to any.

    No answer within the time counts as a way: what was sent may have left.
    """
    begun = {}
    try:
        for host, port in addresses:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            try:
                one = socket.socket(family, kind)
            except OSError:
                continue
            one.setblocking(False)
            said = one.connect_ex((host, port))
            if said == errno.EINPROGRESS:
                begun[one] = f"{host}:{port}"
                continue
            one.close()
            if said in (0, errno.ECONNREFUSED):
                return f"{host}:{port} {'refused it' if said else 'can be sent to'}"
        if not begun:
            return ""
        ended = select.select([], list(begun), [], _DIRECT_S)[1]
        one = ended[0] if ended else next(iter(begun))
        said = one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if ended else errno.ETIMEDOUT
        return f"{begun[one]}: {os.strerror(said).lower() if said else 'connected'}"
    finally:
        for one in begun:
            one.close()


def routes() -> str:
    """Return the interfaces that packets can leave by; "" for none but loopback."""
    with contextlib.suppress(OSError), _ROUTES.open(encoding="ascii") as table:
        return ", ".join(sorted({line.split()[0] for line in list(table)[1:] if line.strip()} - {"lo"}))
    return ""


def host_addresses() -> list[tuple[str, int]]:
    """Return where the host may be: the usual addresses, and the gateways of the routes."""
    found = list(_HOST)
    with contextlib.suppress(OSError, ValueError, IndexError), _ROUTES.open(encoding="ascii") as table:
        gateways = {int(line.split()[2], 16) for line in list(table)[1:]} - {0}
        found += [socket.inet_ntoa(struct.pack("=L", gateway)) for gateway in gateways]
    return [(address, port) for address in found for port in _HOST_PORTS]


def special_sockets() -> str:
    """Return the sockets of other kinds that can be made."""
    kinds = {
        "raw IPv4": ("AF_INET", socket.SOCK_RAW, socket.IPPROTO_ICMP),
        "raw IPv6": ("AF_INET6", socket.SOCK_RAW, socket.IPPROTO_ICMPV6),
        "packet": ("AF_PACKET", socket.SOCK_RAW, 0),
        "vsock": ("AF_VSOCK", socket.SOCK_STREAM, 0),
    }
    made = []
    for name, (family, kind, protocol) in kinds.items():
        with contextlib.suppress(OSError, AttributeError):
            socket.socket(getattr(socket, family), kind, protocol).close()
            made.append(name)
    return ", ".join(made)


def names_resolved() -> str:
    """Return what a lookup of a name, or a question to a name server, was answered."""
    answers: list[str] = []

    def look_up(name: str) -> None:
        with contextlib.suppress(OSError):
            answers.append(f"{name} is {socket.getaddrinfo(name, 80)[0][4][0]}")

    threads = [threading.Thread(target=look_up, args=(name,), daemon=True) for name in _LOOKUPS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_LOOKUP_S)
    if any(thread.is_alive() for thread in threads):
        answers.append("a lookup is still waiting for an answer")
    return ", ".join(answers + [f"{server} answers" for server in name_servers() if _answers(server)])


def name_servers() -> list[str]:
    """Return the name servers that /etc/resolv.conf names, and those that engines put on loopback."""
    found = ["127.0.0.11", "127.0.0.53"]
    with contextlib.suppress(OSError), _RESOLV_CONF.open(encoding="utf-8", errors="replace") as lines:
        found += [line.split()[1] for line in lines if line.split()[:1] == ["nameserver"] and len(line.split()) > 1]
    return list(dict.fromkeys(server.partition("%")[0] for server in found))


def _answers(server: str) -> bool:
    question = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03com\x00\x00\x01\x00\x01"
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.settimeout(_DIRECT_S / 2)
        asking.connect((server, 53))
        asking.send(question)
        return bool(asking.recv(512))
    return False


def variables() -> tuple[str, bool]:
    """Return which of the proxy's variables are set, in words, and whether that is all of them or none."""
    there = [name for name in VARIABLES if os.environ.get(name)]
    if not there:
        return "none is set: the policy lets nothing connect", True
    missing = [name for name in VARIABLES if name not in there]
    return (f"{', '.join(missing)} not set", False) if missing else (f"all set: {os.environ['HTTP_PROXY']}", True)


def through_proxy(target: str) -> str:
    """Return how the proxy answers CONNECT: "200", or the status and what its body says."""
    proxy = urlsplit(os.environ["HTTP_PROXY"])
    try:
        with socket.create_connection((proxy.hostname or "", proxy.port or 0), _PROXY_S) as asking:
            asking.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
            with asking.makefile("rb") as answer:
                head, length = answer.readline(), 0
                while (line := answer.readline()) not in (b"\r\n", b"\n", b""):
                    name, _, value = line.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                body = answer.read(length)
    except OSError as error:
        waiting = isinstance(error, socket.timeout)  # no TimeoutError before Python 3.10
        return f"no answer within {_PROXY_S:g} s" if waiting else f"the proxy: {error.strerror or error}"
    status = head.split()[1].decode("ascii", "replace") if len(head.split()) > 1 else "nothing"
    if not body:
        return status
    try:
        refusal = json.loads(body)
        rule = f" by rule {refusal['rule']}" if refusal.get("rule") else ""
        return f"{status} {refusal['error']}{rule}: {refusal['reason']}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{status} {body[:200].decode('utf-8', 'replace')}"


def all_refused(targets: list[str]) -> tuple[str, bool]:
    """Return the first of the targets that the policy does not refuse, in words, or that it refuses all."""
    for target in targets:
        said = through_proxy(target)
        if not said.startswith(_REFUSED):
            return f"{target}: {said}", False
    return f"{_REFUSED} for all of {len(targets)}", True


def to_forward(port: int, secret: str) -> str:
    """Return how the listener can be reached, in words; "" if it cannot."""
    for host in ("127.0.0.1", "::1"):
        with contextlib.suppress(OSError), socket.create_connection((host, port), _DIRECT_S) as asking:
            if asking.recv(len(secret)) == secret.encode():  # a program of the sandbox itself may have the same port
                return f"{host}:{port} is reached directly"
    if not os.environ.get("HTTP_PROXY"):
        return ""
    said, ok = all_refused([f"{host}:{port}" for host in ("127.0.0.1", "localhost", "[::1]")])
    return "" if ok else f"proxy: {said}"


def check(name: str, expected: str, got: str, ok: bool) -> dict[str, object]:
    """Return one row of the table."""
    return {"name": name, "expected": expected, "got": got, "ok": ok}


def checks(forward: str, reach: list[str]) -> list[dict[str, object]]:
    """Return what was tried, in order."""
    port, _, secret = forward.partition("/")
    cannot = {
        "routes": (routes, "none but loopback's"),
        "TCP to public addresses": (lambda: no_way_to(_PUBLIC), "no way"),
        "TCP to the host": (lambda: no_way_to(host_addresses()), "no way"),
        "TCP to private networks": (lambda: no_way_to(_PRIVATE), "no way"),
        "TCP to metadata services": (lambda: no_way_to(_METADATA), "no way"),
        "TCP over IPv6": (lambda: no_way_to(_IPV6), "no way"),
        "UDP": (lambda: no_way_to([*_PUBLIC, *_PRIVATE, *_METADATA, *_IPV6], socket.SOCK_DGRAM), "no way"),
        "raw sockets": (special_sockets, "none"),
        "DNS": (names_resolved, "no answer"),
        "another tenant's forward": (lambda: to_forward(int(port), secret), "no way"),
    }
    done = []
    for name, (problem, expected) in cannot.items():
        got = problem()
        done.append(check(name, expected, got or expected, not got))
    said, whole = variables()
    done.append(check("proxy variables", "all or none", said, whole))
    if not os.environ.get("HTTP_PROXY"):
        return done + [check(f"reach {target}", "200", "there is no proxy", False) for target in reach]
    refused = {
        "proxy: a host that no rule names": _UNNAMED,
        "proxy: metadata services": _PROXY_METADATA,
        "proxy: loopback": _PROXY_LOOPBACK,
        "proxy: private networks": _PROXY_PRIVATE,
    }
    for name, targets in refused.items():
        done.append(check(name, _REFUSED, *all_refused(targets)))
    for target in reach:
        said = through_proxy(target)
        done.append(check(f"reach {target}", "200", said, said == "200"))
    return done


if __name__ == "__main__":
    print(json.dumps(checks(sys.argv[1], sys.argv[2:])))
