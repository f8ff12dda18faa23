"""The current voters, in the form that each step uses. Pure."""

from ...quorum.voters import Membership


class Electorate:
    """Invariant: `other_ids`, `majority` and `is_voter` are those of the configuration in force."""

    def __init__(self, node_id: int, membership: Membership) -> None:
        self.node_id = node_id
        self.membership = membership
        self.refresh()

    def refresh(self) -> None:
        """Another configuration is in force."""
        current = self.membership.current
        self.other_ids = sorted(current.ids - {self.node_id})
        self.majority = current.majority
        self.is_voter = self.node_id in current.ids

    def are_majority(self, voters: set[int]) -> bool:
        """Of the configuration in force; others may have answered because of an older one."""
        return len(voters & self.membership.current.ids) >= self.majority
