"""Temporary."""
import asyncio, ipaddress, socket
from dataclasses import dataclass

class Unreachable(Exception):
    def __init__(self, kind, message):
        super().__init__(message); self.kind = kind

@dataclass(frozen=True)
class Resolved:
    addresses: tuple[str, ...]

async def resolve(host, port, *, permits, timeout_s, lookup=None):
    try:
        async with asyncio.timeout(timeout_s):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except TimeoutError as error:
        raise Unreachable("timeout", f"{host} was not resolved in time") from error
    except OSError as error:
        raise Unreachable("unresolved", f"{host} does not resolve") from error
    addresses = tuple(dict.fromkeys(one[4][0] for one in found))
    good = tuple(a for a in addresses if ipaddress.ip_address(a).is_global or permits(a, port))
    if not good:
        raise Unreachable("private_address", f"{host} is the private address {addresses[0]}")
    return Resolved(good)
