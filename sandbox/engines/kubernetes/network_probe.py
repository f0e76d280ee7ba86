"""The network probe: Pods that try whether the sandboxes' network policy is enforced, which a policy cannot say itself.

One Pod outside of the policy listens. One inside, with a sandbox's labels, tries to reach it, the API, and what is near
and may be exempt: a policy need not cover a Pod's own node. Then another one outside tries to reach the one inside, and
the first as a control. Each ends with a code that says what it reached.
"""

import asyncio
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from sandbox.engines.containment import RUNTIME_PYTHON
from sandbox.engines.kubernetes import manifests
from sandbox.engines.kubernetes.manifests import RELAY_PORT
from sandbox.engines.kubernetes.resources import NETWORK_POLICIES, Made
from sandbox.engines.kubernetes.trial import Trial, statuses_of
from sandbox.errors import SandboxUnavailable

# A policy may take effect some seconds after a Pod has started.
SETTLE_S = 5.0
_REACHED = 64  # and so six targets at most: from 128 on, codes are those of signals
# Amazon's plugin takes Pods whose names differ in their last part alone for copies of one, with the same policies.
_OUTSIDE, _INSIDE, _CALLER = "outside-pod", "inside-pod", "caller-pod"
_RESOLVER = "resolver"
_LISTEN = f"""
import os, socket, time
address = os.environ["POD_IP"]
family = socket.AF_INET6 if ":" in address else socket.AF_INET
listener = socket.create_server((address, {RELAY_PORT}), family=family)
time.sleep(600)
"""
_DIAL = f"""
import os, socket, sys, threading, time
def address(host):
    if host != "{_RESOLVER}":
        return host
    with open("/etc/resolv.conf") as file:
        lines = [line.split() for line in file]
    return next((line[1] for line in lines if line[:1] == ["nameserver"]), "")
reached = [False] * len(sys.argv[2:])
end = time.monotonic() + float(sys.argv[1])
def dial(index, host, port):
    failures = 0
    while failures < 3:
        try:
            socket.create_connection((address(host), int(port)), 2).close()
        except OSError:
            failures += 1
        else:
            failures = 0
            if time.monotonic() > end:
                reached[index] = True
                return
        time.sleep(0.3)
threads = [
    threading.Thread(target=dial, args=(index, *target.rsplit("=", 1))) for index, target in enumerate(sys.argv[2:])
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
os._exit({_REACHED} + sum(1 << index for index, one in enumerate(reached) if one))
"""


class Target(StrEnum):
    """What is dialled, by TCP."""

    SANDBOX = "a sandbox's relay"
    POD = "another Pod"
    API = "the API"
    KUBELET = "its node's kubelet"
    METADATA = "the metadata service of a cloud"
    DNS = "the cluster's DNS"
    NODE_DNS = "its node's DNS cache"


# A kubelet's usual port, the address that clouds agree on, what Pods ask for names, and NodeLocal DNSCache's address.
_NEARBY = {
    Target.KUBELET: "$(NODE_IP)=10250",
    Target.METADATA: "169.254.169.254=80",
    Target.DNS: f"{_RESOLVER}=53",
    Target.NODE_DNS: "169.254.20.10=53",
}


@dataclass(frozen=True)
class Reached:
    """What was reached from inside the policy, which must be nothing, and from outside it.

    Without the Pod from outside, the control, nothing is known of the others.
    """

    inside: frozenset[Target]
    outside: frozenset[Target]


async def probe(trial: Trial, *, settle_s: float = SETTLE_S) -> Reached:
    """Try the network policy of a trial's instance. Raises SandboxError."""
    policy = manifests.network_policy(trial.site)
    if await trial.requests.get(NETWORK_POLICIES, trial.inside, policy["metadata"]["name"]) is None:
        await trial.requests.create(NETWORK_POLICIES, trial.inside, policy)
    await trial.start(_OUTSIDE, [_listener(trial)], inside=False)
    outside = await trial.wait_for(_OUTSIDE, _listens)
    common = {Target.POD: _address(outside), Target.API: _api(trial.requests.host, outside)}
    from_inside = {**common, **_NEARBY}
    await trial.start(_INSIDE, [_listener(trial), _dialer(trial, settle_s, from_inside)], inside=True)
    inside = await trial.wait_for(_INSIDE, _listens)
    from_outside = {Target.SANDBOX: _address(inside), **common}
    await trial.start(_CALLER, [_dialer(trial, settle_s, from_outside)], inside=False)
    return Reached(*await asyncio.gather(_said(trial, _INSIDE, from_inside), _said(trial, _CALLER, from_outside)))


def _listener(trial: Trial) -> Made:
    body = manifests.bare_container("listener", trial.site.runtime_image, [*RUNTIME_PYTHON, "-c", _LISTEN])
    return {**body, "env": [_field("POD_IP", "status.podIP")]}


def _dialer(trial: Trial, settle_s: float, targets: Mapping[Target, str]) -> Made:
    words = [*RUNTIME_PYTHON, "-c", _DIAL, str(settle_s), *targets.values()]
    body = manifests.bare_container("dialer", trial.site.runtime_image, words)
    return {**body, "env": [_field("NODE_IP", "status.hostIP")]}


def _field(name: str, path: str) -> Made:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _listens(pod: Made) -> bool:
    return any("running" in one["state"] for one in statuses_of(pod) if one["name"] == "listener")


async def _said(trial: Trial, part: str, targets: Mapping[Target, str]) -> frozenset[Target]:
    """Return what a Pod has reached."""
    pod = await trial.wait_for(part, lambda made: _code(made) is not None)
    code = _code(pod)
    if code is None or not _REACHED <= code < 2 * _REACHED:
        raise SandboxUnavailable(f"the probe in the Pod {part} ended with exit code {code}")
    return frozenset(target for index, target in enumerate(targets) if (code - _REACHED) & 1 << index)


def _code(pod: Made) -> int | None:
    ended = [one["state"].get("terminated") for one in statuses_of(pod) if one["name"] == "dialer"]
    return int(ended[0]["exitCode"]) if ended and ended[0] else None


def _address(pod: Made) -> str:
    return f"{pod['status']['podIP']}={RELAY_PORT}"


def _api(host: str, pod: Made) -> str:
    """Return the API's address as Pods have it: one of this machine alone is that of the node."""
    url = urlsplit(host)
    name = url.hostname or ""
    try:
        local = name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        local = False
    return f"{pod['status']['hostIP'] if local else name}={url.port or 443}"
