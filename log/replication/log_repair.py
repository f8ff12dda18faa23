"""How a replica with damage in its log gets a sound log again.

It may cut the damage off only if the cluster does not rely on this replica: otherwise acknowledged records would be lost. So it
resigns (the controller commits an ISR without it, with a new leader epoch), and in an epoch in which it has not fetched it sets
the damage aside and copies the rest from the leader. A pending fetch of the old log belongs to an older epoch, and cannot bring
the replica back into the ISR.
"""

from .current_role import CurrentRole
from .effects import NO_LEADER, Effect, Resign
from .guarded_log import GuardedLog


class LogRepair:
    def __init__(self, role: CurrentRole, storage: GuardedLog) -> None:
        self._role = role
        self._storage = storage
        self._resigned_epoch = -1  # the leader epoch of the last Resign that the controller agreed to
        self._asked_up_to_epoch = -1  # the newest leader epoch in which this replica fetched from a leader

    def will_fetch(self) -> None:
        """The replica fetches in its present leader epoch."""
        self._asked_up_to_epoch = self._role.leader_epoch

    @property
    def is_awaited(self) -> bool:
        """Must a follower not fetch before its log is sound?"""
        return self._role.leader_epoch > self._asked_up_to_epoch and self._storage.log.damage.is_known

    def resign_if_damaged(self) -> list[Effect]:
        """Call it periodically: a replica that could take over may come back."""
        role = self._role
        if not self._storage.is_usable or not self._storage.log.damage.is_known or role.leader == NO_LEADER:
            return []
        if self._resigned_epoch < role.leader_epoch and role.is_in_isr:
            self._resigned_epoch = -1  # the cluster relies on this replica again (an unclean election)
        if self._has_resigned:
            return self._repair()
        return [Resign(topic_partition=role.topic_partition, topic_id=role.topic_id, leader_epoch=role.leader_epoch)]

    def resigned(self, leader_epoch: int) -> list[Effect]:
        """The controller has agreed to a Resign of this leader epoch. Until the metadata shows it, the replica continues: sound
        records still count."""
        self._resigned_epoch = max(self._resigned_epoch, leader_epoch)
        return self.resign_if_damaged()

    @property
    def _has_resigned(self) -> bool:
        """Has it resigned, without a fetch since then that could have brought it back?"""
        return self._resigned_epoch >= self._asked_up_to_epoch and self._resigned_epoch >= 0

    def _repair(self) -> list[Effect]:
        role = self._role
        if not role.is_follower or role.leader_epoch <= self._resigned_epoch or role.is_in_isr:
            return []  # the metadata is still on its way
        self._resigned_epoch = -1
        return self._storage.begin_change("repair of damage", self._storage.log.set_damage_aside)
