"""When nothing disturbs a cluster, replication is quick: records are committed, followers learn it, and replicas join the ISR.

What replication forgets is mended by a look at everything after some seconds (`follower_session`, `fetch_sessions`). So such a
bug loses nothing and ends nothing, and costs every client these seconds. Here each wait has a bound that is far below them.

A wait counts from the moment in which the cluster is calm: all brokers run and are unfenced, no disk and no link is slow, and
nothing was done to the cluster for `CALM_AFTER_S`. It counts for one process and one leader epoch; a new one waits anew.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from barnabas.kraft.metadata.image import PartitionImage
from barnabas.log.replication.partition import Partition
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.logs.following.replica_fetcher import ReplicaFetcher
from barnabas.net.testing.simulation.cluster import PLENTY_BYTES, SimulatedCluster, SimulatedNode, is_serving

from .eligible import EligibleChecker
from .partitions import Key
from .violation import Violation

LOOK_EVERY_S: Final = 0.02  # often enough for the bounds, and seldom enough to cost nothing beside the other checkers
# replica.socket.timeout.ms is 1.5 s: until then, a fetcher may wait for an answer that a fault has taken.
CALM_AFTER_S: Final = 2.0
MAX_CALM_DELAY_S: Final = 0.03  # of a link; some histories have slow networks from the beginning
# Two round trips, with the longest delay of one partition after errors (`replica_fetcher.PARTITION_BACKOFF_MS`).
COMMIT_S: Final = 0.4
TELL_S: Final = 0.6  # the same, and replica.fetch.wait.max.ms: a follower learns of a high watermark by its next fetch
# A fetch, a proposal to the controller, its commit; a refused proposal is repeated after a pause.
JOIN_S: Final = 1.5


# Of a fetcher: four for each batch that some replica appends, and long polls, delays of new partitions and what is fetched
# again. A fetcher whose requests are answered at once without news sends a thousand in a second.
MAX_REQUESTS_PER_BATCH: Final = 4
MAX_IDLE_REQUESTS: Final = 100
COUNT_OVER_S: Final = 1.0


class _Wait(NamedTuple):
    """For an offset to be reached; `mark` says in which process and which epoch."""

    offset: int
    since_s: float
    mark: tuple[object, ...]


class _Count(NamedTuple):
    since_s: float
    requests: int
    batches: int


class ProgressChecker:
    def __init__(self, cluster: SimulatedCluster, eligible: EligibleChecker) -> None:
        self.cluster = cluster
        self.eligible = eligible
        self.judged = 0  # waits that ended within their bound
        self.most_idle_requests = 0
        self.longest_s: dict[str, float] = {}  # by what was waited for
        self._next_look_s = 0.0
        self._waits: dict[tuple[str, Key, int], _Wait] = {}  # by what is waited for, and on which node
        self._counts: dict[ReplicaFetcher, _Count] = {}

    def look(self) -> None:
        now_s = self.cluster.loop.time()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_EVERY_S
        if not self._is_calm():
            self.cluster.disturbed()
        if now_s < self.cluster.disturbed_at_s + CALM_AFTER_S:
            self._waits.clear()
            self._counts.clear()
            return
        for node in self.cluster.nodes:
            if node.broker is not None:
                for fetcher in node.broker.fetchers._fetchers.values():
                    self._count_requests(node, fetcher)
        for topic in self.eligible.newest.topics.values():
            for number, image in enumerate(topic.partitions):
                self._judge((topic.topic_id, number), topic.name, image)

    # --- calm ---------------------------------------------------------------------------------------------------------

    def _is_calm(self) -> bool:
        links = self.cluster.world.links()
        return all(map(self._is_well, self.cluster.nodes)) and not any(
            link.is_cut or link.loss or link.latency_s + link.jitter_s > MAX_CALM_DELAY_S for link in links
        )

    def _is_well(self, node: SimulatedNode) -> bool:
        process, broker, now_s = node.process, node.broker, self.cluster.loop.time()
        if process is None or broker is None or not is_serving(node) or not broker.is_ready:
            return False
        known = self.eligible.newest.brokers.get(node.node_id)
        if known is None or known.fenced or known.incarnation != broker.ports.incarnation:
            return False
        if any(it.stalled_until > now_s for it in (process, *process.threads)):
            return False
        is_disk_slow = node.slow_disk_s or node.disk_hangs_until > now_s
        return not (is_disk_slow or node.disk_may_refuse or node.disk.failed or node.disk.capacity_bytes < PLENTY_BYTES)

    # --- waits --------------------------------------------------------------------------------------------------------

    def _judge(self, key: Key, topic: str, image: PartitionImage) -> None:
        name = TopicPartition(topic, key[1])
        leader = self._replica(image.leader, key, name, image)
        leading = None if leader is None else leader.role.leader_state
        if leader is None or leading is None or leader.storage.error is not None:
            return
        epoch, committed = image.leader_epoch, leading.high_watermark
        if not leading.isr.eligible and not leading.is_under_min_isr:
            led = (self.cluster.nodes[image.leader].process, epoch, image.partition_epoch)
            self._await("commit", COMMIT_S, key, name, image.leader, led, committed, leading.log_end_offset)
        for node_id, follower in self._followers(key, name, image):
            mark = (self.cluster.nodes[node_id].process, epoch)
            self._await("join", JOIN_S, key, name, node_id, mark, int(node_id in image.isr), 1)
            if node_id in image.isr:
                self._await("tell", TELL_S, key, name, node_id, mark, follower.high_watermark, committed)

    def _count_requests(self, node: SimulatedNode, fetcher: ReplicaFetcher) -> None:
        now = _Count(self.cluster.loop.time(), fetcher._session.number, self.eligible.partitions.appends)
        former = self._counts.setdefault(fetcher, now)
        if now.since_s < former.since_s + COUNT_OVER_S:
            return
        self._counts[fetcher] = now
        requests, batches = now.requests - former.requests, now.batches - former.batches
        self.most_idle_requests = max(self.most_idle_requests, requests - MAX_REQUESTS_PER_BATCH * batches)
        if requests > MAX_IDLE_REQUESTS + MAX_REQUESTS_PER_BATCH * batches:
            raise Violation(
                f"node-{node.node_id} fetches {requests} times from node-{fetcher.leader} in "
                f"{now.since_s - former.since_s:.2f} s, while all replicas together append {batches} batches, in a calm cluster"
            )

    def _followers(self, key: Key, name: TopicPartition, image: PartitionImage) -> Iterator[tuple[int, Partition]]:
        for node_id in image.replicas:
            follower = self._replica(node_id, key, name, image)
            if node_id != image.leader and follower is not None and follower.storage.error is None:
                yield node_id, follower

    def _replica(self, node_id: int, key: Key, name: TopicPartition, image: PartitionImage) -> Partition | None:
        """None: there is none, or its broker has not heard of this epoch."""
        broker = self.cluster.nodes[node_id].broker if node_id >= 0 else None
        partition = None if broker is None else broker.replication.manager.find(name)
        if partition is None or partition.topic_id != key[0] or partition.leader_epoch != image.leader_epoch:
            return None
        return partition

    def _await(
        self,
        what: str,
        bound_s: float,
        key: Key,
        name: TopicPartition,
        node_id: int,
        mark: tuple[object, ...],
        now: int,
        wanted: int,
    ) -> None:
        at_s, place = self.cluster.loop.time(), (what, key, node_id)
        wait = self._waits.get(place)
        if wait is not None and wait.mark == mark:
            waited_s = at_s - wait.since_s
            if now < wait.offset:
                if waited_s > bound_s:
                    raise Violation(
                        f"{name}: node-{node_id} waits {waited_s:.2f} s to {what} {wait.offset}, and has {now}, in a calm cluster"
                    )
                return
            self.judged += 1
            self.longest_s[what] = max(self.longest_s.get(what, 0.0), waited_s)
        self._waits.pop(place, None)
        if now < wanted:
            self._waits[place] = _Wait(wanted, at_s, mark)
