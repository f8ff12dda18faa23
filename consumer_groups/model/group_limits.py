"""What keeps the groups of a slot few and their ids short: all of it is in the memory of every voter. All of these raise."""

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
    """Of members, instances and clients."""
    for name in ids:
        if len(name) > settings.max_id_length:
            raise InvalidRequestError(f"an id of {len(name)} characters; at most {settings.max_id_length} are allowed")


def check_new_group(group_id: str, existing: Collection[str], settings: GroupSettings) -> None:
    """May there be one more group beside the existing ones of the slot?"""
    if group_id not in existing and len(existing) >= settings.max_groups_per_slot:
        raise PolicyViolationError(
            f"group {group_id} is not created: its coordinator has {len(existing)} groups already, at most "
            f"{settings.max_groups_per_slot} are allowed (group.max.per.slot); delete groups that are not needed "
            "(barnabas group delete), or raise the limit"
        )
