"""State that no leader of the quorum confirms: how old it is, and which voters are missing, in words and for programs. Pure."""

from typing import Any

from .responses import DescribeQuorumResponse


def doubt_of(quorum: DescribeQuorumResponse) -> dict[str, Any] | None:
    """For programs; None while a leader of the quorum confirms the metadata."""
    if quorum.unconfirmed_ms < 0:
        return None
    return {
        "message": doubt_in_words(quorum),
        "seconds": quorum.unconfirmed_ms / 1000,
        "unreachable_voters": list(quorum.unreachable_voters),
    }


def doubt_in_words(quorum: DescribeQuorumResponse) -> str:
    """`no quorum: as of 12 s ago; voters unreachable: 1, 2`."""
    missing = ", ".join(map(str, quorum.unreachable_voters)) or "none, but they have not agreed on a leader"
    return f"no quorum: as of {quorum.unconfirmed_ms // 1000} s ago; voters unreachable: {missing}"
