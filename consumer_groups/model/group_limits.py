"""Limits on the number of groups of a slot and on the length of ids: every voter holds them in memory. All functions raise."""

from collections.abc import Collection

from barnabas.log.vocabulary.errors import InvalidGroupIdError, InvalidRequestError, PolicyViolationError

from .settings import GroupSettings


def check_group_id(group_id: str, settings: GroupSettings) -> None:
    if not group_id:
        raise InvalidGroupIdError("the group id is empty: give the group a name")
    if len(group_id) > settings.max_group_id_length:
        raise InvalidGroupIdError(
            f"the group id has {len(group_id)} characters, at most {settings.max_group_id_length} are allowed: "
            f"give the group a shorter name than {group_id[:20]!r}..."
        )


def check_ids(ids: Collection[str], settings: GroupSettings) -> None:
    """Check the ids of members, instances and clients."""
    for name in ids:
        if len(name) > settings.max_id_length:
            raise InvalidRequestError(f"an id of {len(name)} characters; at most {settings.max_id_length} are allowed")


def check_new_group(group_id: str, existing: Collection[str], settings: GroupSettings) -> None:
    """Check whether the slot may have one more group."""
    if group_id not in existing and len(existing) >= settings.max_groups_per_slot:
        raise PolicyViolationError(
            f"group {group_id} is not created: its coordinator has {len(existing)} groups already, at most "
            f"{settings.max_groups_per_slot} are allowed (group.max.per.slot); delete groups that are not needed "
            "(barnabas group delete), or raise the limit"
        )
