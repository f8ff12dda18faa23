"""Metadata records, snapshots and the controller's requests, in the very bytes in which version 0.1.0 wrote them: they lie on
users' disks, and brokers of two versions exchange them during an upgrade."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from unit.kraft.group_state_fake import FakeGroupState
from unit.recorded_bytes import Samples, assert_as_recorded

from barnabas.kraft.metadata import records
from barnabas.kraft.metadata.image import (
    SLOT_COUNT,
    BrokerImage,
    ControllerTerm,
    MetadataImage,
    PartitionImage,
    SlotImage,
    TopicImage,
)
from barnabas.kraft.metadata.records import GroupRecord, Record, RecordBatch, decode_batch, encode_batch
from barnabas.kraft.metadata.requests import (
    REQUESTS,
    ControllerRequest,
    RegisterBroker,
    ReportLogEnds,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)
from barnabas.kraft.node.snapshot import decode_snapshot, encode_snapshot
from barnabas.log.vocabulary.cluster_changes import (
    AlterQuotasRequest,
    AlterUsersRequest,
    CreateAclsRequest,
    DeleteAclsRequest,
)
from barnabas.log.vocabulary.errors import NotControllerError
from barnabas.log.vocabulary.node_address import NodeAddress

RESPONSES = dict(REQUESTS.values())
RECORDING = Path(__file__).with_name("recorded_records.json")


# Fields that these got after they were recorded. What was recorded is still read; what is written has one more form.
ADDED = {
    "RegisterBrokerRecord": ("machine",),
    "QuorumStatus": ("strangers",),
    "RegisterBroker": ("machine",),
    "BrokerImage": ("machine",),
    "ShareStateRecord": ("written_epoch",),
    "ShareMemberRecord": ("principal",),
    "TransactionRecord": ("prepared_for", "is_last", "given_up"),
}
READ_ONLY = (
    "full RegisterBrokerRecord",
    "least RegisterBrokerRecord",
    "all of them",
    "full ShareStateRecord",
    "least ShareStateRecord",
    "full ShareMemberRecord",
    "least ShareMemberRecord",
    "full TransactionRecord",
    "least TransactionRecord",
    "request: full RegisterBroker",
    "request: least RegisterBroker",
    "answer: full QuorumStatus to full DescribeVoters",
    "answer: least QuorumStatus to full DescribeVoters",
    "answer: full QuorumStatus to least DescribeVoters",
    "answer: least QuorumStatus to least DescribeVoters",
    "snapshot 1",
)
# Not known to version 0.1.0: recorded when they were added.
LATER_RECORDS = (
    records.TransactionRecord,
    records.RemoveTransactionRecord,
    records.PendingOffsetsRecord,
    records.PendingOffsetsEndedRecord,
)
RECORDS_OF_USERS = (
    records.ScramCredentialRecord,
    records.RemoveScramCredentialRecord,
    records.LoginSecretRecord,
)
RECORDS_OF_ACLS = (records.AclRecord, records.RemoveAclRecord)
RECORDS_OF_QUOTAS = (records.QuotaRecord,)
RECORDS_OF_SHARE_GROUPS = (
    records.ShareGroupRecord,
    records.RemoveShareGroupRecord,
    records.ShareMemberRecord,
    records.RemoveShareMemberRecord,
    records.ShareStateRecord,
    records.RemoveShareStatesRecord,
)
LATER = LATER_RECORDS + RECORDS_OF_USERS + RECORDS_OF_ACLS + RECORDS_OF_QUOTAS + RECORDS_OF_SHARE_GROUPS
LATER_REQUESTS = (AlterUsersRequest,)
REQUESTS_OF_ACLS = (CreateAclsRequest, DeleteAclsRequest)
REQUESTS_OF_QUOTAS = (AlterQuotasRequest,)
REQUESTS_OF_LOG_ENDS = (ReportLogEnds,)


def test_an_opcode_of_a_newer_version_is_named() -> None:
    known, written = encode_batch(RecordBatch(controller_epoch=3, records=())), msgspec.msgpack.encode
    version, epoch, _ = msgspec.msgpack.decode(known)
    with pytest.raises(records.UnknownRecordError, match="metadata opcode 9999 is not known to this version"):
        decode_batch(written([version, epoch, [[21, "t"], [9999, 1]]]))
    with pytest.raises(records.UnknownRecordError, match="cannot be read"):
        decode_batch(known[:-1])


def defined_in(module: Any, base: type) -> list[Any]:
    return [cls for cls in vars(module).values() if isinstance(cls, type) and issubclass(cls, base) and cls is not base]


def batches() -> dict[str, RecordBatch]:
    samples = Samples(ADDED)
    made = {
        f"{make.__name__} {cls.__name__}": RecordBatch(controller_epoch=3, records=(make(cls),))
        for make in (samples.full, samples.least)
        for cls in defined_in(records, Record)
        if cls not in LATER
    }
    several = tuple(record for batch in made.values() for record in batch.records)
    later: dict[str, RecordBatch] = {}
    for group in (LATER_RECORDS, RECORDS_OF_USERS, RECORDS_OF_ACLS, RECORDS_OF_QUOTAS, RECORDS_OF_SHARE_GROUPS):
        samples = Samples(ADDED)
        later |= {
            f"{make.__name__} {cls.__name__}": RecordBatch(controller_epoch=3, records=(make(cls),))
            for make in (samples.full, samples.least)
            for cls in group
        }
    return made | later | {"all of them": RecordBatch(controller_epoch=2**40, records=several)}


def controller_requests() -> dict[str, ControllerRequest]:
    later = LATER_REQUESTS + REQUESTS_OF_ACLS + REQUESTS_OF_QUOTAS + REQUESTS_OF_LOG_ENDS
    known = [cls for cls, _ in REQUESTS.values() if cls not in later]
    requests: dict[str, ControllerRequest] = {}
    for group in (known, LATER_REQUESTS, REQUESTS_OF_ACLS, REQUESTS_OF_QUOTAS, REQUESTS_OF_LOG_ENDS):
        samples = Samples(ADDED)
        made = (samples.full, samples.least)
        requests |= {f"{make.__name__} {cls.__name__}": make(cls) for make in made for cls in group}
    return requests


def answers() -> dict[str, tuple[ControllerRequest, Any]]:
    samples = Samples(ADDED)
    return {
        f"{make.__name__} {RESPONSES[type(request)].__name__} to {name}": (request, make(RESPONSES[type(request)]))
        for name, request in controller_requests().items()
        for make in (samples.full, samples.least)
    }


def image() -> MetadataImage:
    samples = Samples(ADDED)
    topics = {
        name: TopicImage(name=name, topic_id=name * 8, partitions=(samples.full(PartitionImage), samples.least(PartitionImage)))
        for name in ("a", "b")
    }  # fmt: skip
    return MetadataImage(
        cluster_id="cluster",
        offset=7,
        controller_epoch=5,
        controller_id=2,
        feature_level=3,
        next_producer_id=2**40,
        brokers={number: samples.full(BrokerImage) for number in range(2)},
        topics=topics,
        topic_names={topic.topic_id: name for name, topic in topics.items()},
        topic_configs={"a": {"k": "v"}},
        broker_configs={"": {"k": "v"}, "1": {"k": "w"}},
        group_configs={"g": {"k": "v"}},
        slots=tuple(SlotImage(coordinator=number % 3, coordinator_epoch=number) for number in range(SLOT_COUNT)),
        voters=(samples.full(NodeAddress),),
        voters_index=6,
        terms=(samples.full(ControllerTerm), samples.full(ControllerTerm)),
        recovery_epoch=4,
        recovery_offset=3,
    )


def snapshot() -> list[bytes]:
    state = FakeGroupState()
    state.replay(GroupRecord(slot=3, coordinator_epoch=0, group_id="g", group_epoch=1, assignment_epoch=1), 1)
    return list(encode_snapshot(image(), state))


def extended() -> dict[str, RecordBatch | ControllerRequest]:
    samples = Samples()
    batch = RecordBatch(controller_epoch=3, records=(samples.full(records.RegisterBrokerRecord),))
    state = RecordBatch(controller_epoch=3, records=(Samples().full(records.ShareStateRecord),))
    member = RecordBatch(controller_epoch=3, records=(Samples().full(records.ShareMemberRecord),))
    transaction = RecordBatch(controller_epoch=3, records=(Samples().full(records.TransactionRecord),))
    return {
        "extended RegisterBrokerRecord": batch,
        "request: extended RegisterBroker": samples.full(RegisterBroker),
        "extended ShareStateRecord": state,
        "extended ShareMemberRecord": member,
        "extended TransactionRecord": transaction,
    }


def test_records_and_requests_are_written_as_ever() -> None:
    now = {name: encode_batch(batch) for name, batch in batches().items()}
    now |= {f"request: {name}": encode_request(request) for name, request in controller_requests().items()}
    now |= {f"answer: {name}": encode_answer(answer) for name, (_, answer) in answers().items()}
    now |= {f"snapshot {number}": chunk for number, chunk in enumerate(snapshot())}
    now["answer: error"] = encode_answer(NotControllerError("elsewhere"))
    known = {name: bytes.fromhex(data) for name, data in json.loads(RECORDING.read_text()).items()}
    assert all(now[name] != known[name] for name in READ_ONLY), "a form that is still written belongs to the others"
    now |= {name: known[name] for name in READ_ONLY}
    for name, value in extended().items():
        now[name] = encode_batch(value) if isinstance(value, RecordBatch) else encode_request(value)
    assert_as_recorded(RECORDING, now)


def test_records_and_requests_are_read_as_ever() -> None:
    recorded = {name: bytes.fromhex(data) for name, data in json.loads(RECORDING.read_text()).items()}
    for name, batch in batches().items():
        assert decode_batch(recorded[name]) == batch, name
    for name, request in controller_requests().items():
        assert decode_request(recorded[f"request: {name}"]) == request, name
    for name, (request, answer) in answers().items():
        assert decode_answer(request, recorded[f"answer: {name}"]) == answer, name
    for name, value in extended().items():
        decoded_value = (
            decode_batch(recorded[name]) if isinstance(value, RecordBatch) else decode_request(recorded[name])
        )
        assert decoded_value == value, name
    chunks = [data for name, data in recorded.items() if name.startswith("snapshot ")]
    decoded, groups = decode_snapshot(chunks)
    made = image()
    assert list(decoded.brokers.values())[-1] == list(made.brokers.values())[-1]
    assert (decoded.topics, decoded.slots, decoded.terms, decoded.voters) == (
        made.topics,
        made.slots,
        made.terms,
        made.voters,
    )
    assert [record.group_id for record in groups if isinstance(record, GroupRecord)] == ["g"]
