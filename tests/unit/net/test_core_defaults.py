"""A broker whose file says nothing runs groups with the defaults that the core documents."""

from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.log.settings.broker_keys import MAX_GROUP_SIZE
from barnabas.net.base.settings.config import load
from barnabas.net.broker.core_settings import group_settings


def test_each_setting_of_groups_has_one_default() -> None:
    defaults = group_settings(load(None, {}, {}))
    assert defaults == GroupSettings()
    assert defaults.max_group_size == defaults.max_classic_group_size == MAX_GROUP_SIZE
