"""A burst of claims: by compare-and-swap, and as a controller does that believes its cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.simulation.costs import COSTS, POOL_MAKERS, Costs
from tests.simulation.events import Process, Server, Signal, Simulation

# The pool is full again by then.
_SECONDS = 180.0
How = Literal["compare-and-swap", "stale cache"]


@dataclass(eq=False)
class Pod:
    """A Pod; its owner is what the API server has, and `seen_s` when a watch shows the last change."""

    made_s: float
    ready_s: float
    owner: int | None = None
    changed_s: float = 0.0


@dataclass(frozen=True)
class Claimed:
    """What a burst took."""

    how: How
    claims: int
    served: int
    creations: int
    conflicts: int
    writes: int
    surplus: int
    p50_s: float
    last_s: float
    longest_api_queue: int


@dataclass
class _Cluster:
    """The API server, and the Pods. A watch is `watch_lag_s` late for every client."""

    simulation: Simulation
    costs: Costs
    pods: list[Pod] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.api = Server(self.simulation, round(self.costs.api_writes_per_s * self.costs.api_s))

    def write(self, what: str) -> Generator[float | Signal, Any, None]:
        self.counts[what] += 1
        yield from self.api.serve(self.costs.api_s)

    def create(self, owner: int | None = None) -> Generator[float | Signal, Any, Pod]:
        self.counts["creations"] += 1
        yield from self.write("writes")
        yield from self.write("writes")
        now_s = self.simulation.now_s
        pod = Pod(now_s, now_s + self.costs.pod_ready_s * (0.7 + 0.6 * self.simulation.chance.random()), owner, now_s)
        self.pods.append(pod)
        return pod

    def free(self) -> list[Pod]:
        """Return the Pods that look free and ready: in a cache, which shows what was true a moment ago."""
        then_s = self.simulation.now_s - self.costs.watch_lag_s
        return [pod for pod in self.pods if pod.ready_s <= then_s and (pod.owner is None or pod.changed_s > then_s)]

    def known(self) -> int:
        """Return how many Pods without an owner a cache shows, ready or not."""
        then_s = self.simulation.now_s - self.costs.watch_lag_s
        return sum(pod.made_s <= then_s and (pod.owner is None or pod.changed_s > then_s) for pod in self.pods)

    def swap(self, pod: Pod, owner: int) -> Generator[float | Signal, Any, bool]:
        """Write the owner if the Pod is as it was seen; the API server compares its resourceVersion."""
        yield from self.write("writes")
        if pod.owner is not None:
            self.counts["conflicts"] += 1
            return False
        pod.owner, pod.changed_s = owner, self.simulation.now_s
        return True


def burst(how: How, *, claims: int = 500, gateways: int = 10, pool: int = 100, costs: Costs = COSTS) -> Claimed:
    """Have so many threads ask in half a second, each at one of the gateways."""
    simulation = Simulation(claims + gateways)
    cluster = _Cluster(simulation, costs)
    cluster.pods = [Pod(-60.0, -30.0, changed_s=-60.0) for _ in range(pool)]
    taken_s: list[float] = []
    all_ = [_Gateway(cluster) for _ in range(gateways)]

    def thread(number: int) -> Process:
        yield simulation.chance.random() * 0.5
        began_s = simulation.now_s
        if how == "compare-and-swap":
            pod = yield from all_[number % gateways].claim(number)
        else:
            pod = yield from _adopt(cluster, number)
        if pod.ready_s > simulation.now_s:
            yield pod.ready_s - simulation.now_s
        taken_s.append(simulation.now_s - began_s)

    for number in range(claims):
        simulation.start(thread(number))
    if how == "stale cache":
        simulation.start(_reconcile(cluster, pool, until_s=20.0))
    simulation.run(_SECONDS)
    taken_s.sort()
    return Claimed(
        how,
        claims,
        served=len({pod.owner for pod in cluster.pods if pod.owner is not None}),
        creations=cluster.counts["creations"],
        conflicts=cluster.counts["conflicts"],
        writes=cluster.counts["writes"],
        surplus=sum(pod.owner is None for pod in cluster.pods) - pool,
        p50_s=taken_s[len(taken_s) // 2],
        last_s=taken_s[-1],
        longest_api_queue=cluster.api.longest,
    )


@dataclass
class _Gateway:
    """What one process knows: the Pods that it tried, and who makes pooled ones, a few at a time."""

    cluster: _Cluster
    tried: set[Pod] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._makers = Server(self.cluster.simulation, POOL_MAKERS)

    def claim(self, number: int) -> Generator[Any, Any, Pod]:
        """Claim as the engine does: shut the gate, then any Pod by compare-and-swap, else one made for the thread.

        All see all pooled Pods, which is harder than a pool of each process, as the engine has it.

        Who has claimed a pooled one makes the next: the pool is filled by what was won, not by a count of what a cache
        shows.
        """
        cluster = self.cluster
        yield from cluster.write("writes")
        won: Pod | None = None
        while won is None and (free := [pod for pod in cluster.free() if pod not in self.tried]):
            pod = cluster.simulation.chance.choice(free)
            self.tried.add(pod)
            if (yield from cluster.swap(pod, number)):
                won = pod
                cluster.simulation.start(self._refill())
        if won is None:
            yield from cluster.write("writes")  # the record: what is to be
            won = yield from cluster.create(owner=number)
        else:
            yield from cluster.write("writes")  # its volume's owner
        yield from cluster.write("writes")  # the record: running
        return won

    def _refill(self) -> Process:
        yield from self._makers.take()
        pod = yield from self.cluster.create()
        yield max(0.0, pod.ready_s - self.cluster.simulation.now_s)
        self._makers.leave()


def _adopt(cluster: _Cluster, number: int) -> Generator[Any, Any, Pod]:
    """Adopt the first Pod that the cache shows as free, without a look at its version; who loses it makes another."""
    free = cluster.free()
    if not free:
        return (yield from cluster.create(owner=number))
    pod = free[0]
    yield from cluster.write("writes")
    pod.owner, pod.changed_s = number, cluster.simulation.now_s
    yield cluster.costs.watch_lag_s
    if pod.owner == number:
        return pod
    cluster.counts["conflicts"] += 1
    return (yield from cluster.create(owner=number))


def _reconcile(cluster: _Cluster, pool: int, until_s: float) -> Process:
    """Fill the pool by the count that the cache shows, at each event of a Pod: what was just made is not in it yet."""
    seen = 0
    while cluster.simulation.now_s < until_s:
        if cluster.counts["writes"] > seen:
            seen = cluster.counts["writes"]
            for _ in range(max(0, pool - cluster.known())):
                cluster.simulation.start(_made(cluster))
        yield cluster.costs.api_s


def _made(cluster: _Cluster) -> Process:
    yield from cluster.create()
