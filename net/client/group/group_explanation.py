"""The explanation of a group as JSON, for `barnabas group explain --format json` and for the admin API. Pure."""

from datetime import UTC, datetime

from barnabas.log.vocabulary.group_messages import RebalanceEvent, TopicPartitions
from barnabas.net.wire.protocol.group_responses import DescribeGroupResponse, GroupMember

Json = dict[str, object]


def explanation(group: DescribeGroupResponse) -> Json:
    """The complete explanation, with stable codes."""
    return {
        "group": group.group_id,
        "state": group.state,
        "epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "coordinator": group.coordinator,
        "unowned": [
            {
                "topic": item.topic,
                "partition": item.partition,
                "reason": item.reason,
                "text": item.text,
                "member": item.member_id or None,
                "for_ms": _known(item.since_ms),
                "ends_in_ms": _known(item.ends_in_ms),
            }
            for item in group.unowned
        ],
        "reconciling": [member.member_id for member in group.members if member.assigned != member.target],
        "members": [_member_row(member) for member in group.members],
        "rebalances": [rebalance_row(event) for event in group.rebalances],
    }


def rebalance_row(event: RebalanceEvent) -> Json:
    return {
        "id": event.rebalance_id,
        "at": time_text(event.at_ms),
        "at_ms": event.at_ms,
        "epoch": event.group_epoch,
        "cause": event.cause,
        "member": event.member_id or None,
        "causes": [
            {
                "cause": reason.cause,
                "at_ms": reason.at_ms,
                "epoch": reason.group_epoch,
                "member": reason.member_id or None,
                "client_id": reason.client_id,
                "host": reason.client_host,
                "instance": reason.instance_id,
                "detail": reason.detail,
            }
            for reason in event.reasons
        ],
        "moves": [
            {
                "topic": move.topic,
                "partition": move.partition,
                "from": move.from_member or None,
                "to": move.to_member or None,
                "at_ms": move.at_ms,
                "pause_ms": move.pause_ms,
            }
            for move in event.moves
        ],
        "moved_count": event.moved_count,
        "longest_pause_ms": event.longest_pause_ms,
        "stable_after_ms": event.stable_after_ms,
        "under_way": event.is_under_way,
    }


def _member_row(member: GroupMember) -> Json:
    return {
        "member": member.member_id,
        "instance": member.instance_id,
        "client_id": member.client_id,
        "host": member.client_host,
        "epoch": member.member_epoch,
        "away": member.is_away,
        "silent_ms": _known(member.silent_ms),
        "session_left_ms": _known(member.session_left_ms),
        "slow_ms": _known(member.slow_ms),
        "assigned": _places(member.assigned),
        "target": _places(member.target),
    }


def _places(owned: tuple[TopicPartitions, ...]) -> list[str]:
    return [f"{item.topic}-{number}" for item in owned for number in item.partitions]


def _known(value_ms: int) -> int | None:
    return None if value_ms < 0 else value_ms


def time_text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
