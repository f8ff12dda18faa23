"""The internal topic of effectively-once sinks: the ledger of their decisions."""

import logging

from barnabas.log.vocabulary.errors import AuthorizationError, InvalidConfigError
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.client import Client
from barnabas.net.client.connection.errors import ErrorCode, TopicAlreadyExistsError
from barnabas.net.wire.protocol.requests import MetadataRequest
from barnabas.net.wire.protocol.responses import MetadataResponse

from ..common.sink_ledger import LEDGER_TOPIC

logger = logging.getLogger("barnabas.spark")

CLEANUP_POLICY = "cleanup.policy"
REPLICAS = 3  # At most the number of brokers; two of three must have each decision.
_MANY_REPLICAS = {"min.insync.replicas": "2"}
_LEDGER = {
    CLEANUP_POLICY: "compact",
    "segment.bytes": str(8 << 20),  # The open segment is never compacted, and a driver that starts reads all of it.
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.1",
}


class SinkTopics:
    """Use it only on the event loop of its client."""

    def __init__(self, client: Client, *, timeout_ms: int) -> None:
        self._client = client
        self._admin = Admin(client=client, timeout_ms=timeout_ms)
        self._timeout_ms = timeout_ms

    async def ensure_ledger(self) -> None:
        """Create it unless it exists. Raises InvalidConfigError for an existing one whose records are deleted in time.

        The request names the topic before the client tracks its metadata: a client that allows automatic creation for one topic
        would make the brokers create all topics that it tracks, with their defaults.
        """
        request = MetadataRequest(topics=(LEDGER_TOPIC,), allow_auto_topic_creation=False)
        found: MetadataResponse = await self._client.retrying(
            lambda: self._client.call_any(request), timeout_ms=self._timeout_ms
        )
        if found.topics[0].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            replicas = min(REPLICAS, len(self._client.metadata.brokers))
            extra = _MANY_REPLICAS if replicas >= REPLICAS else {}
            try:
                await self._admin.create_topic(
                    LEDGER_TOPIC, partitions=1, replication_factor=replicas, configs={**_LEDGER, **extra}
                )
            except TopicAlreadyExistsError:
                pass  # Another driver was faster.
        else:
            await self._check_keeps_decisions()
        await self._client.wait_for_topic(LEDGER_TOPIC, timeout_ms=self._timeout_ms)

    async def _check_keeps_decisions(self) -> None:
        """Somebody may have created it, or changed it. Without a decision, the next driver writes its rows again."""
        try:
            found = await self._admin.describe_configs(LEDGER_TOPIC)
        except AuthorizationError as error:
            logger.warning("%s of %s is not checked reason=%s", CLEANUP_POLICY, LEDGER_TOPIC, error.message)
            return
        policy = next((item.value for item in found if item.key == CLEANUP_POLICY), None)
        if policy != _LEDGER[CLEANUP_POLICY]:
            raise InvalidConfigError(
                f"the topic {LEDGER_TOPIC} has {CLEANUP_POLICY}={policy}, which deletes the decisions of effectively_once sinks: "
                f"barnabas config set {CLEANUP_POLICY}=compact -t {LEDGER_TOPIC}"
            )
