"""What a user hears about changes of topics."""

import asyncio
from typing import Any, cast

import pytest

from barnabas.log.vocabulary.errors import TopicDeletionDisabledError
from barnabas.net.base.settings.config import load
from barnabas.net.handlers.common.services import Services
from barnabas.net.handlers.own.topics import TopicHandlers
from barnabas.net.wire.protocol.requests import DeleteTopicRequest


def test_a_cluster_that_allows_no_deletion_says_how_to_allow_it() -> None:
    config = load(None, {"delete.topic.enable": "false"}, {})
    nobody = cast(Any, None)
    services = Services(
        node_id=0,
        config=config,
        clock=nobody,
        metadata=nobody,
        controller=nobody,
        replication=nobody,
        groups=nobody,
        rng=nobody,
        throttle=nobody,
        producer_ids=nobody,
        transactions=nobody,
        transaction_operations=nobody,
        markers=nobody,
        verification=nobody,
        shares=nobody,
        authenticator=nobody,
        events=nobody,
    )
    with pytest.raises(TopicDeletionDisabledError, match="delete.topic.enable"):
        asyncio.run(TopicHandlers(services).delete(DeleteTopicRequest(name="t"), nobody))
