"""How the messages between voters look on the wire. Pure.

On the wire a message is a map with the field names of pysyncobj: they are part of the protocol and never change. Whatever comes
from the network is checked in `read_message`, once.
"""

from typing import Any, Final

from ...quorum.config import MAX_TERM
from ...quorum.formation import VoterState
from ..protocol.messages import (
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
from .wire import WireError, frame

_MAX_NUMBER: Final = 1 << 63  # of a field of the journal
_Field = tuple[str, str, type]  # name on the wire, name of the attribute, type
_APPEND: Final = "append_entries"
_TERM: Final[_Field] = ("term", "term", int)
_COMMIT: Final[_Field] = ("commit_index", "commit_index", int)
_NONCE: Final[_Field] = ("nonce", "nonce", int)
_LAST: Final[tuple[_Field, ...]] = (
    ("last_log_index", "last_log_index", int),
    ("last_log_term", "last_log_term", int),
)
_PLACE: Final[tuple[_Field, ...]] = (
    _TERM,
    _COMMIT,
    ("prevLogIdx", "prev_index", int),
    ("prevLogTerm", "prev_term", int),
    ("entries", "entries", tuple),
)
# In the order of the bytes. `AppendEntries` and `InstallSnapshot` share a kind and have a layout of their own.
_LAYOUTS: Final[dict[type[Any], tuple[str, tuple[_Field, ...]]]] = {
    AppendReply: (
        "next_node_idx",
        (_TERM, ("next_node_idx", "next_index", int), ("reset", "is_reset", bool), ("success", "is_success", bool)),
    ),
    RequestVote: ("request_vote", (_TERM, *_LAST, ("transfer", "is_transfer", bool))),
    Vote: ("response_vote", (_TERM,)),
    RequestPreVote: ("pre_vote", (_TERM, *_LAST)),
    PreVote: ("pre_vote_ok", (_TERM,)),
    StaleTerm: ("stale_term", (_TERM,)),
    TimeoutNow: ("timeout_now", (_TERM,)),
    FormQuery: ("form_query", (_NONCE,)),
    FormState: ("form_state", (_NONCE, ("state", "state", int))),
    Formed: ("formed", (_NONCE,)),
    Welcome: ("welcome", (_TERM, ("index", "index", int))),
    Joined: ("joined", ()),
    Ping: ("ping", ()),
}
_KINDS: Final = {kind: (message_type, fields) for message_type, (kind, fields) in _LAYOUTS.items()}


def encode_message(message: Message) -> bytes:
    """As a frame."""
    if type(message) is AppendEntries:
        return frame(
            {
                "type": _APPEND,
                "term": message.term,
                "commit_index": message.commit_index,
                "entries": message.entries,
                "prevLogIdx": message.prev_index,
                "prevLogTerm": message.prev_term,
            }
        )
    if type(message) is InstallSnapshot:
        head: dict[str, object] = {"type": _APPEND, "term": message.term, "commit_index": message.commit_index}
        return frame(head | {"serialized": message.chunk})
    kind, fields = _LAYOUTS[type(message)]
    document: dict[str, object] = {"type": kind}
    for wire_name, name, _ in fields:
        document[wire_name] = getattr(message, name)
    return frame(document)


def read_message(value: Any) -> Message:
    """Return what was unpacked as a message. Raises WireError for an unknown kind and for a field that is wrong."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == _APPEND:
        return _read_append(value)
    known = _KINDS.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise WireError(f"an unknown message: {kind!r}"[:200])
    message_type, fields = known
    found = _checked(kind, value, fields)
    if message_type is FormState:
        if found["state"] not in VoterState.__members__.values():
            raise WireError("form_state with an unknown state")
        found["state"] = VoterState(found["state"])
    message: Message = message_type(**found)
    return message


def _read_append(value: Any) -> Message:
    if "serialized" in value:
        found = _checked(_APPEND, value, (_TERM, _COMMIT))
        chunk = value["serialized"]
        if chunk is not None and not _is_chunk(chunk):
            raise WireError("append_entries with a bad piece of a snapshot")
        return InstallSnapshot(**found, chunk=chunk)
    found = _checked(_APPEND, value, _PLACE)
    term = found["term"]
    for index, entry in enumerate(found["entries"], found["prev_index"] + 1):
        if type(entry) is not tuple or len(entry) != 3 or type(entry[0]) is not bytes or not entry[0]:
            raise WireError("append_entries with a bad entry")
        if type(entry[1]) is not int or entry[1] != index or type(entry[2]) is not int or not 0 <= entry[2] <= term:
            raise WireError("append_entries with an entry out of place")
    return AppendEntries(**found)


def _checked(kind: object, value: dict[str, Any], fields: tuple[_Field, ...]) -> dict[str, Any]:
    """The fields by their attributes' names. msgpack makes exact types, so a bool is no number here."""
    found: dict[str, Any] = {}
    for wire_name, name, expected in fields:
        field = value.get(wire_name)
        if type(field) is not expected or (type(field) is int and not 0 <= field < _MAX_NUMBER):
            raise WireError(f"{kind} with a bad {wire_name}")
        if name == "term" and type(field) is int and field >= MAX_TERM:
            raise WireError(f"{kind} of the term {field}, which no election can have reached")
        found[name] = field
    return found


def _is_chunk(value: Any) -> bool:
    if type(value) is not tuple or len(value) != 3 or type(value[0]) is not tuple or len(value[0]) != 3:
        return False
    (size_bytes, position, data), is_first, is_last = value
    numbers = all(type(number) is int and 0 <= number < _MAX_NUMBER for number in (size_bytes, position))
    return numbers and type(data) is bytes and type(is_first) is bool and type(is_last) is bool
