"""Every message of our own protocol, in the very bytes in which version 0.1.0 wrote it."""

import json
from pathlib import Path
from typing import Any

from unit.recorded_bytes import Samples, assert_as_recorded

from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.net.wire.protocol.apis import REQUEST_OF, RESPONSE_OF, key_of
from barnabas.net.wire.protocol.codec import DecodedRequest
from barnabas.net.wire.protocol.msgpack import ClientHello, MsgpackCodec, ServerHello, read_hello, write_hello
from barnabas.net.wire.protocol.responses import ErrorResponse

RECORDING = Path(__file__).with_name("recorded_messages.json")
CODEC = MsgpackCodec()
# Fields that messages got after version 0.1.0 was recorded. What was recorded is still read; what is written has one more form.
ADDED = {
    "MetadataFeedRequest": ("applied",),
    "MetadataFeedResponse": ("contradiction",),
    "FetchRequest": ("session_id", "session_epoch", "forgotten", "may_be_sent_away"),
    "FetchResponse": ("session_id", "error"),
    "FetchPartitionResponse": ("aborted",),
    "AddToTransactionResponse": ("started_ms",),
    "WriteMarkersRequest": (),
    "TransactionMarker": ("started_ms", "leader_epochs", "group_epochs"),
    "OffsetFetchResponse": ("unstable",),
    "ListTransactionsResponse": ("is_filtered",),
    "ListedTransaction": ("prepared_for",),
    "ListTransactionsRequest": ("id_prefix",),
    "DescribeTransactionRequest": ("is_confirmed",),
    "DescribeTransactionResponse": (),
    "EndTransactionRequest": ("is_last",),
    "DescribeClusterResponse": (),
    "ClusterBroker": ("machine",),
    "ControllerCallResponse": ("wall_ms",),
    "DescribeBrokerRequest": ("history",),
    "DescribeGroupRequest": ("history", "shares"),
    "DescribeGroupResponse": ("lags", "lag_topics", "protocol", "shares"),
    "DescribeBrokerResponse": ("history",),
    "DescribeStorageRequest": ("topic",),
    "DescribeStorageResponse": ("sizes",),
    "LoadShareStatesResponse": (),
    "LoadedShareState": ("written_epoch",),
    "UndoOffsetResetRequest": ("topics",),
    "DescribeQuorumResponse": ("strangers",),
    "ConsumerGroupHeartbeatRequest": ("wants_offsets",),
    "ConsumerGroupHeartbeatResponse": ("offsets",),
}
# Fields that these got after their form of ADDED was recorded.
ADDED_AGAIN = {
    "FetchRequest": ("may_be_sent_away",),
    "FetchResponse": ("session_id", "error"),
    "ListTransactionsResponse": (),
    "ListedTransaction": ("prepared_for",),
    "DescribeGroupRequest": ("shares",),
    "DescribeGroupResponse": ("protocol", "shares"),
}
HELLOS: tuple[Any, ...] = (ClientHello, ServerHello)


def joined(chunks: list[Any]) -> bytes:
    return b"".join(bytes(chunk) for chunk in chunks)


# Requests that were added after the first recording; their samples do not move those of the others.
LATER = {
    "InitTransactionsRequest",
    "AddToTransactionRequest",
    "EndTransactionRequest",
    "TransactionalOffsetCommitRequest",
    "WriteMarkersRequest",
}
# Later again.
LATEST = {
    "ListTransactionsRequest",
    "DescribeTransactionRequest",
    "AbortTransactionRequest",
    "OpenTransactionsRequest",
    "AbortHangingRequest",
}
OF_PREPARED = {"PrepareTransactionRequest"}
# Requests about users.
OF_USERS = {"AlterUsersRequest", "AuthenticateRequest", "DescribeUsersRequest"}
OF_PERMISSIONS = {"DescribeAclsRequest", "CreateAclsRequest", "DeleteAclsRequest"}
OF_QUOTAS = {"DescribeQuotasRequest", "AlterQuotasRequest"}
OF_EVENTS = {"EventsRequest"}
OF_DELETED_OFFSETS = {"DeleteOffsetsRequest"}
OF_FIGURES = {"DescribeBrokerRequest"}
OF_SHARE_GROUPS = {
    "ShareGroupHeartbeatRequest",
    "ShareFetchRequest",
    "ShareAcknowledgeRequest",
    "LoadShareStatesRequest",
    "WriteShareStatesRequest",
}
OF_SHARE_VIEWS = {"ShareViewsRequest"}
OF_GROUP_LAGS = {"GroupLagsRequest"}


def asked(request_type: Any) -> DecodedRequest:
    return DecodedRequest(77, int(key_of(request_type)), 1, InvalidRequestError())


def messages() -> dict[str, tuple[Any, Any]]:
    """By name: what encodes and decodes it, and the value."""
    samples = Samples(ADDED)
    made: dict[str, tuple[Any, Any]] = {}
    for request_type, response_type in RESPONSE_OF.items():
        name = f"{response_type.__name__} to {request_type.__name__}"
        if request_type.__name__ in ADDED:
            made[f"extended {request_type.__name__}"] = (None, Samples(ADDED_AGAIN).full(request_type))
        if request_type.__name__ in ADDED_AGAIN:
            made[f"extended again {request_type.__name__}"] = (None, Samples().full(request_type))
        if response_type.__name__ in ADDED:
            made[f"extended {name}"] = (request_type, Samples(ADDED_AGAIN).full(response_type))
        if response_type.__name__ in ADDED_AGAIN:
            made[f"extended again {name}"] = (request_type, Samples().full(response_type))
    for names, some in (
        (None, samples),
        (LATER, Samples(ADDED)),
        (LATEST, Samples(ADDED)),
        (OF_USERS, Samples()),
        (OF_PERMISSIONS, Samples()),
        (OF_QUOTAS, Samples()),
        (OF_EVENTS, Samples()),
        (OF_DELETED_OFFSETS, Samples()),
        (OF_FIGURES, Samples(ADDED)),
        (OF_SHARE_GROUPS, Samples(ADDED)),
        (OF_PREPARED, Samples()),
        (OF_SHARE_VIEWS, Samples()),
        (OF_GROUP_LAGS, Samples()),
    ):
        made |= _of_one_time(names, some)
    return made


def _of_one_time(names: set[str] | None, samples: Samples) -> dict[str, tuple[Any, Any]]:
    """`names` of requests; None: those of version 0.1.0."""

    def is_here(request_type: Any) -> bool:
        name = request_type.__name__
        later = LATER | LATEST | OF_USERS | OF_PERMISSIONS | OF_QUOTAS | OF_EVENTS | OF_DELETED_OFFSETS
        later |= OF_FIGURES | OF_SHARE_GROUPS | OF_PREPARED | OF_SHARE_VIEWS | OF_GROUP_LAGS
        return name not in later if names is None else name in names

    made: dict[str, tuple[Any, Any]] = {}
    for make in (samples.full, samples.least):
        for request_type in REQUEST_OF.values():
            if is_here(request_type):
                made[f"{make.__name__} {request_type.__name__}"] = (None, make(request_type))
        for request_type, response_type in RESPONSE_OF.items():
            if not is_here(request_type):
                continue
            response = make(response_type)
            made[f"{make.__name__} {response_type.__name__} to {request_type.__name__}"] = (request_type, response)
            made[f"{make.__name__} ErrorResponse to {request_type.__name__}"] = (request_type, make(ErrorResponse))
    return made


def is_of_before(name: str, value: Any) -> bool:
    """Was it recorded without the fields that its class has now? Then it is read, but written as `extended`."""
    newest = "extended again" if type(value).__name__ in ADDED_AGAIN else "extended"
    return type(value).__name__ in ADDED and not name.startswith(newest)


def written(request_type: Any, value: Any) -> bytes:
    if request_type is None:
        return joined(CODEC.encode_request(2**40, value))
    return joined(CODEC.encode_response(asked(request_type), value))


def hellos() -> dict[str, Any]:
    samples = Samples()
    return {f"{make.__name__} {cls.__name__}": make(cls) for make in (samples.full, samples.least) for cls in HELLOS}


def test_messages_are_written_as_ever() -> None:
    known = {name: bytes.fromhex(data) for name, data in json.loads(RECORDING.read_text()).items()}
    now = {
        name: known[name] if is_of_before(name, value) else written(request_type, value)
        for name, (request_type, value) in messages().items()
    }
    now |= {name: write_hello(hello) for name, hello in hellos().items()}
    assert_as_recorded(RECORDING, now)


def test_messages_are_read_as_ever() -> None:
    recorded = {name: bytes.fromhex(data) for name, data in json.loads(RECORDING.read_text()).items()}
    for name, (request_type, value) in messages().items():
        frame = memoryview(bytearray(recorded.pop(name)))[4:]
        if request_type is None:
            decoded = CODEC.decode_request(frame)
            assert decoded.correlation_id == 2**40 and decoded.payload == value, name
        else:
            assert CODEC.response_body(request_type, CODEC.decode_response(frame)) == value, name
    for name, hello in hellos().items():
        assert read_hello(type(hello), recorded.pop(name)[4:]) == hello
    assert not recorded
