"""Who is who on the channel over TCP: names in certificates, and the TLS contexts of both ends.

Every certificate is signed by the authority of one gateway instance (sandbox/client/channel_authority.py) and has
exactly one name, a URI. A peer is accepted for its whole name, never for a part of it:

    airlock://INSTANCE/gateway                                                   a gateway, as client
    airlock://INSTANCE/sandbox/ID                                                a pooled sandbox, as server
    airlock://INSTANCE/sandbox/ID/tenant/DIGEST/thread/DIGEST/epoch/NUMBER       a thread's sandbox, as server
"""

import os
import re
import ssl

# The protocol, and its version, by ALPN. A pooled sandbox takes its name by the second one.
CHANNEL_PROTOCOL = "airlock-channel/1"
CLAIM_PROTOCOL = "airlock-claim/2"

READY = b"\x01"
"""What the relay sends when the daemon is connected, or a claim is done: only then is its certificate check known."""

IDENTITY_LIMIT_BYTES = 64 * 1024

_PART = r"[A-Za-z0-9._-]{1,128}"
_GATEWAY = re.compile(rf"airlock://{_PART}/gateway")
_SANDBOX = re.compile(rf"airlock://{_PART}/sandbox/{_PART}(?:/tenant/{_PART}/thread/{_PART}/epoch/\d{{1,20}})?")


def gateway_name(instance: str) -> str:
    """Return the name of the gateways of an instance; ValueError if the instance cannot be part of a name."""
    return _checked(_GATEWAY, f"airlock://{instance}/gateway")


def pooled_name(instance: str, sandbox_id: str) -> str:
    """Return the name of a sandbox without an owner; raises as gateway_name()."""
    return _checked(_SANDBOX, f"airlock://{instance}/sandbox/{sandbox_id}")


def sandbox_name(instance: str, sandbox_id: str, owner: tuple[str, str], epoch: int) -> str:
    """Return the name of a thread's sandbox; `owner` are the digests of tenant and thread. Raises as gateway_name().

    `epoch` distinguishes one start or claim of the sandbox from every other.
    """
    tenant, thread = owner
    place = pooled_name(instance, sandbox_id)
    return _checked(_SANDBOX, f"{place}/tenant/{tenant}/thread/{thread}/epoch/{epoch}")


def _checked(form: re.Pattern[str], name: str) -> str:
    if not form.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of a certificate")
    return name


def server_context(identity: bytes, authority: str) -> ssl.SSLContext:
    """Return the relay's context; `identity` is its key and certificate in PEM. Raises ssl.SSLError for others."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # each connection shows its certificate
    # Of these the server takes the client's only one.
    return _with(context, identity, authority, [CHANNEL_PROTOCOL, CLAIM_PROTOCOL])


def client_context(identity: bytes, authority: str, protocol: str = CHANNEL_PROTOCOL) -> ssl.SSLContext:
    """Return the gateway's context; arguments and errors as for server_context()."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # an address proves nothing; the name is compared after the handshake
    return _with(context, identity, authority, [protocol])


def _with(context: ssl.SSLContext, identity: bytes, authority: str, protocols: list[str]) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(cadata=authority)
    context.set_alpn_protocols(protocols)
    # ssl reads certificates from files only; this one is never on a disk.
    with open(os.memfd_create("identity", os.MFD_CLOEXEC), "wb") as memory:  # noqa: PTH123 - a descriptor
        memory.write(identity)
        memory.flush()
        context.load_cert_chain(f"/proc/self/fd/{memory.fileno()}")
    return context
