"""Changes of configurations as the controller decides them: lists, what is wrong only together, and replacing all."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace
from unit.kraft.single_controller import SingleController

from barnabas.kraft.controller.configuration_control import ConfigRules, ConfigurationControl
from barnabas.kraft.metadata.controller_result import ControllerResult
from barnabas.kraft.metadata.controller_settings import MAX_GROUPS_WITH_CONFIGS
from barnabas.kraft.metadata.delta import MetadataDelta
from barnabas.kraft.metadata.image import TopicImage
from barnabas.kraft.metadata.records import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE, ConfigRecord
from barnabas.kraft.metadata.replay import replay
from barnabas.kraft.metadata.requests import AlterConfig, ConfigChange, ConfigOperation, decode_request, encode_request
from barnabas.log.vocabulary.errors import InvalidConfigError, InvalidRequestError, PolicyViolationError

APPEND, SUBTRACT = ConfigOperation.APPEND, ConfigOperation.SUBTRACT
LISTS = {"list": "delete"}


def check_together(values: Mapping[str, str]) -> None:
    if int(values.get("min", "0")) > int(values.get("max", "9")):
        raise InvalidConfigError("min is above max")


RULES = ConfigRules(check_together=check_together, default_list=LISTS.get)


def changed(
    *changes: ConfigChange, now: dict[str, str] | None = None, replaces_all: bool = False, resource_type: int = 2
) -> dict[str, str | None]:
    """What the controller writes for a topic that sets `now`."""
    cluster = SingleController(1)
    cluster.topic(0)
    for key, value in (now or {}).items():
        cluster.configure(key, value)
    request = AlterConfig(
        resource_type=resource_type,
        resource="t" if resource_type == TOPIC_RESOURCE else "",
        changes=changes,
        replaces_all=replaces_all,
    )
    result: ControllerResult = ConfigurationControl(RULES).alter(MetadataDelta(cluster.image), request)
    records = [record for record in result.records if isinstance(record, ConfigRecord)]
    assert len(records) == len(result.records)
    return {record.key: record.value for record in records}


def change(key: str, value: str | None, operation: ConfigOperation = ConfigOperation.SET) -> ConfigChange:
    return ConfigChange(key=key, value=value, operation=operation)


def test_a_list_is_added_to_and_taken_from_as_it_is_now() -> None:
    assert changed(change("list", "compact", APPEND)) == {"list": "delete,compact"}
    assert changed(change("list", "a, b,a", APPEND), now={"list": "b"}) == {"list": "b,a"}
    assert changed(change("list", "b", SUBTRACT), now={"list": "a,b,c"}) == {"list": "a,c"}
    assert changed(change("list", "x", SUBTRACT), now={"list": "a"}) == {}, "nothing changed, nothing is written"


def test_a_list_that_a_topic_leaves_alone_is_that_of_all_brokers() -> None:
    view = MetadataDelta(SingleController(1).image)
    view = MetadataDelta(replace(view.base, broker_configs={"": {"of.brokers": "compact"}}, topics=with_topic()))
    rules = ConfigRules(default_list=LISTS.get, broker_key=lambda key: "of.brokers")
    request = AlterConfig(resource_type=TOPIC_RESOURCE, resource="t", changes=(change("list", "delete", APPEND),))
    (record,) = ConfigurationControl(rules).alter(view, request).records
    assert isinstance(record, ConfigRecord) and record.value == "compact,delete"


def with_topic() -> dict[str, TopicImage]:
    cluster = SingleController(1)
    cluster.topic(0)
    return cluster.image.topics


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
@pytest.mark.parametrize("resource_type", [TOPIC_RESOURCE, BROKER_RESOURCE])
def test_only_lists_can_be_added_to(operation: ConfigOperation, resource_type: int) -> None:
    with pytest.raises(InvalidConfigError, match="scalar is not a list"):
        changed(change("scalar", "1", operation), resource_type=resource_type)


def test_what_is_wrong_only_together_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="min is above max"):
        changed(change("min", "5"), now={"max": "3"})
    assert changed(change("min", "5"), change("max", None), now={"max": "3"}) == {"min": "5", "max": None}
    with pytest.raises(InvalidConfigError, match="min is above max"):
        ConfigurationControl(RULES).check_new_topic({"min": "5", "max": "3"})


def test_replacing_all_takes_away_what_is_not_named() -> None:
    now = {"a": "1", "b": "2", "c": "3"}
    assert changed(change("b", "4"), now=now, replaces_all=True) == {"b": "4", "a": None, "c": None}
    assert changed(now=now, replaces_all=True) == {"a": None, "b": None, "c": None}
    assert changed(change("b", "4"), now=now) == {"b": "4"}


def test_the_operation_travels_to_the_controller() -> None:
    request = AlterConfig(resource_type=2, resource="t", changes=(change("list", "a", APPEND),), replaces_all=True)
    assert decode_request(encode_request(request)) == request


# --- groups -----------------------------------------------------------------------------------------------------------


def of_group(view: MetadataDelta, group_id: str, **values: str | None) -> dict[str, str]:
    """Alter, replay, and return what the group sets then."""

    def check(key: str, value: str) -> None:
        if key != "a":
            raise InvalidConfigError(f"unknown group configuration {key}")

    changes = tuple(ConfigChange(key=key, value=value) for key, value in values.items())
    request = AlterConfig(resource_type=GROUP_RESOURCE, resource=group_id, changes=changes)
    for record in ConfigurationControl(ConfigRules(check_group=check)).alter(view, request).records:
        assert replay(view, record, 1)
    return view.group_config(group_id)


def test_a_group_that_is_not_there_yet_can_be_configured_and_leaves_nothing_behind() -> None:
    view = MetadataDelta(SingleController(1).image)
    assert of_group(view, "0", a="1") == {"a": "1"}
    image = view.apply(9)
    assert image.group_configs == {"0": {"a": "1"}} and not image.broker_configs.get("0"), "no broker's"
    view = MetadataDelta(image)
    assert of_group(view, "0", a=None) == {}
    assert view.apply(10).group_configs == {}


def test_configurations_of_groups_have_rules_and_limits() -> None:
    view = MetadataDelta(SingleController(1).image)
    with pytest.raises(InvalidConfigError, match="unknown group configuration b"):
        of_group(view, "g", b="1")
    for name in ("", "x" * 1_001):
        with pytest.raises(InvalidRequestError, match="1 to 1000 characters"):
            of_group(view, name, a="1")
    crowd = {str(number): {"a": "1"} for number in range(MAX_GROUPS_WITH_CONFIGS)}
    full = MetadataDelta(replace(view.base, group_configs=crowd))
    with pytest.raises(PolicyViolationError, match="10000 groups have"):
        of_group(full, "one more", a="1")
    assert of_group(full, "7", a="2") == {"a": "2"}, "who has one may change it"
