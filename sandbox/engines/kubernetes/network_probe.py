"""The network probe: Pods that try whether the sandboxes' network policy is enforced, which a policy cannot say itself.

One Pod outside of the policy listens. One inside, with a sandbox's labels, tries to reach it and the API. Then another
one outside tries to reach the one inside, and the first as a control. Each ends with a code that says what it reached.
"""

import asyncio
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from sandbox.engines.containment import RUNTIME_PYTHON
from sandbox.engines.kubernetes import manifests
from sandbox.engines.kubernetes.kubernetes_requests import NETWORK_POLICIES, Made
from sandbox.engines.kubernetes.manifests import RELAY_PORT
from sandbox.engines.kubernetes.trial import Trial
from sandbox.errors import SandboxUnavailable

# A policy may take effect some seconds after a Pod has started.
SETTLE_S = 5.0
_REACHED = 64
_LISTEN = f"""
import os, socket, time
address = os.environ["POD_IP"]
family = socket.AF_INET6 if ":" in address else socket.AF_INET
listener = socket.create_server((address, {RELAY_PORT}), family=family)
time.sleep(600)
"""
_DIAL = f"""
import os, socket, sys, threading, time
reached = [False] * len(sys.argv[2:])
end = time.monotonic() + float(sys.argv[1])
def dial(index, host, port):
    failures = 0
    while failures < 3:
        try:
            socket.create_connection((host, int(port)), 2).close()
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


@dataclass(frozen=True)
class Reached:
    """What was reached: from inside the policy, which must be nothing, and from outside it."""

    pod_from_inside: bool
    api_from_inside: bool
    sandbox_from_outside: bool
    pod_from_outside: bool
    """The control: without it nothing is known of the others."""
    api_from_outside: bool


async def probe(trial: Trial, *, settle_s: float = SETTLE_S) -> Reached:
    """Try the network policy of a trial's instance. Raises SandboxError."""
    policy = manifests.network_policy(trial.site)
    if await trial.requests.get(NETWORK_POLICIES, trial.inside, policy["metadata"]["name"]) is None:
        await trial.requests.create(NETWORK_POLICIES, trial.inside, policy)
    await trial.start("outside", [_listener(trial)], inside=False)
    outside = await trial.wait_for("outside", _listens)
    there, api = _address(outside), _api(trial.requests.host, outside)
    await trial.start("inside", [_listener(trial), _dialer(trial, settle_s, [there, api])], inside=True)
    inside = await trial.wait_for("inside", _listens)
    targets = [_address(inside), there, api]
    await trial.start("caller", [_dialer(trial, settle_s, targets)], inside=False)
    from_inside, from_outside = await asyncio.gather(_said(trial, "inside"), _said(trial, "caller"))
    return Reached(bool(from_inside & 1), bool(from_inside & 2), *(bool(from_outside & bit) for bit in (1, 2, 4)))


def _listener(trial: Trial) -> Made:
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    body = manifests.bare_container("listener", trial.site.runtime_image, [*RUNTIME_PYTHON, "-c", _LISTEN])
    return {**body, "env": [address]}


def _dialer(trial: Trial, settle_s: float, targets: Sequence[str]) -> Made:
    words = [*RUNTIME_PYTHON, "-c", _DIAL, str(settle_s), *targets]
    return manifests.bare_container("dialer", trial.site.runtime_image, words)


def _listens(pod: Made) -> bool:
    return any("running" in one["state"] for one in _statuses(pod) if one["name"] == "listener")


async def _said(trial: Trial, part: str) -> int:
    """Return the bits of what a Pod has reached."""
    pod = await trial.wait_for(part, lambda made: _code(made) is not None)
    code = _code(pod)
    if code is None or not _REACHED <= code < 2 * _REACHED:
        raise SandboxUnavailable(f"the probe in the Pod {part} ended with exit code {code}")
    return code - _REACHED


def _code(pod: Made) -> int | None:
    ended = [one["state"].get("terminated") for one in _statuses(pod) if one["name"] == "dialer"]
    return int(ended[0]["exitCode"]) if ended and ended[0] else None


def _statuses(pod: Made) -> Sequence[Made]:
    return (pod.get("status") or {}).get("containerStatuses") or ()


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
