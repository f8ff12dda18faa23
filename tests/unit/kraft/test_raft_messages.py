"""The bytes of the messages between voters: they are a protocol between releases, so each one stands here as it was."""

import msgpack
import pytest

from barnabas.kraft.quorum.formation import VoterState
from barnabas.kraft.quorum.voters import VoterSet
from barnabas.kraft.raft.net.message_codec import encode_message, read_message
from barnabas.kraft.raft.net.wire import (
    MAX_HELLO_BYTES,
    Directory,
    Hello,
    WireError,
    decode_directory,
    decode_hello,
    encode_directory,
    encode_hello,
    split_frames,
    unpack,
)
from barnabas.kraft.raft.protocol.messages import (
    AppendEntries,
    AppendReply,
    Formed,
    FormQuery,
    FormState,
    InstallSnapshot,
    Joined,
    Message,
    Ping,
    PreVote,
    RequestPreVote,
    RequestVote,
    StaleTerm,
    TimeoutNow,
    Vote,
    Welcome,
)
from barnabas.log.vocabulary.node_address import NodeAddress

LENGTH_BYTES = 4  # of a frame, before its body

ENTRIES = ((b"\x00a", 8, 3), (b"\x01", 9, 3))
CHUNK = ((100, 0, b"piece"), True, False)
ON_THE_WIRE: list[tuple[Message, dict[str, object]]] = [
    (
        AppendEntries(term=3, commit_index=7, prev_index=7, prev_term=2, entries=ENTRIES),
        {
            "type": "append_entries",
            "term": 3,
            "commit_index": 7,
            "entries": list(ENTRIES),
            "prevLogIdx": 7,
            "prevLogTerm": 2,
        },
    ),
    (
        InstallSnapshot(term=3, commit_index=7, chunk=CHUNK),
        {"type": "append_entries", "term": 3, "commit_index": 7, "serialized": CHUNK},
    ),
    (
        InstallSnapshot(term=3, commit_index=7, chunk=None),
        {"type": "append_entries", "term": 3, "commit_index": 7, "serialized": None},
    ),
    (
        AppendReply(term=3, next_index=8, is_reset=False, is_success=True),
        {"type": "next_node_idx", "term": 3, "next_node_idx": 8, "reset": False, "success": True},
    ),
    (
        RequestVote(term=3, last_log_index=7, last_log_term=2, is_transfer=True),
        {"type": "request_vote", "term": 3, "last_log_index": 7, "last_log_term": 2, "transfer": True},
    ),
    (Vote(term=3), {"type": "response_vote", "term": 3}),
    (
        RequestPreVote(term=3, last_log_index=7, last_log_term=2),
        {"type": "pre_vote", "term": 3, "last_log_index": 7, "last_log_term": 2},
    ),
    (PreVote(term=3), {"type": "pre_vote_ok", "term": 3}),
    (StaleTerm(term=3), {"type": "stale_term", "term": 3}),
    (TimeoutNow(term=3), {"type": "timeout_now", "term": 3}),
    (FormQuery(nonce=5), {"type": "form_query", "nonce": 5}),
    (FormState(nonce=5, state=VoterState.PRISTINE), {"type": "form_state", "nonce": 5, "state": 1}),
    (Formed(nonce=5), {"type": "formed", "nonce": 5}),
    (Welcome(term=3, index=9), {"type": "welcome", "term": 3, "index": 9}),
    (Joined(), {"type": "joined"}),
    (Ping(), {"type": "ping"}),
]


@pytest.mark.parametrize(("message", "document"), ON_THE_WIRE, ids=lambda item: type(item).__name__)
def test_a_message_has_the_bytes_of_every_release(message: Message, document: dict[str, object]) -> None:
    (body,) = split_frames(bytearray(encode_message(message)), MAX_HELLO_BYTES)
    assert body == msgpack.packb(document)
    assert read_message(unpack(body)) == message


@pytest.mark.parametrize(("message", "document"), ON_THE_WIRE, ids=lambda item: type(item).__name__)
def test_a_message_without_one_of_its_fields_is_refused(message: Message, document: dict[str, object]) -> None:
    del message
    for missing in document:
        rest = unpack(msgpack.packb({name: value for name, value in document.items() if name != missing}))
        with pytest.raises(WireError):
            read_message(rest)


def test_a_field_that_a_newer_release_adds_is_passed_over() -> None:
    assert read_message({"type": "response_vote", "term": 3, "more": b"x"}) == Vote(term=3)


def test_a_peer_that_speaks_tls_is_told_apart_from_a_long_frame() -> None:
    with pytest.raises(WireError, match=r"speaks TLS.*tls\.transition"):
        split_frames(bytearray.fromhex("1603010200"), MAX_HELLO_BYTES)
    with pytest.raises(WireError, match="a frame has 369098752 bytes"):
        split_frames(bytearray.fromhex("1600000000"), MAX_HELLO_BYTES)


DIRECTORY = Directory(
    node_id=1, cluster_id="c", leader_id=2, endpoints={1: b"one"},
    voters=VoterSet(voters=(NodeAddress(node_id=1, host="h", port=9),), index=5),
)  # fmt: skip


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, "HTTP"), (1, "1"), (1, -1), (1, True), (2, None), (4, [["x", b""]]), (4, 7), (5, "x"), (6, b"\xc1")],
)
def test_a_directory_with_a_field_of_another_kind_is_refused(place: int, value: object) -> None:
    fields = list(unpack(encode_directory(DIRECTORY)[LENGTH_BYTES:]))
    assert decode_directory(msgpack.packb(fields)) == DIRECTORY
    fields[place] = value
    with pytest.raises(WireError, match="no directory"):
        decode_directory(msgpack.packb(fields))


HELLO = Hello(voter_id=3, cluster_id="c", voters_hash=5, state=VoterState.VOTER, endpoint=b"e", token=7)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, "HTTP"), (1, 1), (2, "3"), (2, True), (2, -1), (3, b"c"), (4, None), (4, -1),
        (5, 99), (5, "1"), (6, "e"), (6, None), (7, "7"), (7, -1), (7, 1 << 63),
    ],
)  # fmt: skip
def test_a_hello_with_a_field_of_another_kind_is_refused(place: int, value: object) -> None:
    fields = list(unpack(encode_hello(HELLO)[LENGTH_BYTES:]))
    assert decode_hello(msgpack.packb(fields)) == HELLO
    fields[place] = value
    with pytest.raises(WireError, match="hello|version"):
        decode_hello(msgpack.packb(fields))


def test_a_frame_is_taken_as_soon_as_it_is_whole() -> None:
    buffer = bytearray(bytes(4) + b"\0\0\0\x02ab" + bytes(3))
    assert split_frames(buffer, 10) == [b"", b"ab"] and buffer == bytes(3)
    assert split_frames(bytearray(4), 10) == [b""]


@pytest.mark.parametrize(
    ("entry", "is_allowed"),
    [
        ((b"x", 8, 0), True),
        ((b"x", 8, 3), True),
        ((b"x", 8, 4), False),
        ((b"x", 8, -1), False),
        ((b"x", 8, True), False),
        ((b"x", 7, 2), False),
        ((b"x", 9, 2), False),
        ((b"", 8, 2), False),
        ((b"x", 8), False),
        ([b"x", 8, 2], False),
    ],
)
def test_an_entry_lies_behind_the_one_before_it_in_no_later_term_than_the_leaders(
    entry: tuple[bytes, int, int], is_allowed: bool
) -> None:
    document = {
        "type": "append_entries", "term": 3, "commit_index": 7, "prevLogIdx": 7, "prevLogTerm": 2, "entries": (entry,),
    }  # fmt: skip
    if is_allowed:
        expected = AppendEntries(term=3, commit_index=7, prev_index=7, prev_term=2, entries=(entry,))
        assert read_message(document) == expected
    else:
        with pytest.raises(WireError):
            read_message(document)


@pytest.mark.parametrize(
    ("chunk", "is_allowed"),
    [
        (((100, 0, b"piece"), True, False), True),
        (((0, 0, b""), False, True), True),
        (((-1, 0, b""), False, True), False),
        (((100, -1, b""), False, True), False),
        (((100, 1 << 63, b""), False, True), False),
        (((True, 0, b""), False, True), False),
        (((100, 0, "piece"), True, False), False),
        (((100, 0, b"piece"), 1, False), False),
        (((100, 0, b"piece"), True, None), False),
        (((100, 0), True, False), False),
        (((100, 0, b"piece"), True), False),
        ([(100, 0, b"piece"), True, False], False),
        (([100, 0, b"piece"], True, False), False),
    ],
)
def test_a_piece_of_a_snapshot_has_numbers_bytes_and_marks(chunk: object, is_allowed: bool) -> None:
    document = {"type": "append_entries", "term": 3, "commit_index": 7, "serialized": chunk}
    if is_allowed:
        assert read_message(document) == InstallSnapshot(term=3, commit_index=7, chunk=chunk)  # type: ignore[arg-type]
    else:
        with pytest.raises(WireError):
            read_message(document)
