"""What `quick_init` must leave as it was, and what it must refuse."""

import copy
import dataclasses
import pickle
from dataclasses import dataclass, field

import pytest

from barnabas.log.vocabulary.quick_init import quick_init


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    name: str
    offset: int = -1


def test_a_value_is_what_it_was_before() -> None:
    place = Place(name="a", offset=3)
    assert type(place) is Place
    assert (place.name, place.offset) == ("a", 3)
    assert place == Place(name="a", offset=3) != Place(name="a")
    assert hash(place) == hash(Place(name="a", offset=3))
    assert repr(place).endswith("Place(name='a', offset=3)")
    assert Place(name="b").offset == -1


def test_it_is_still_frozen() -> None:
    place = Place(name="a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        place.offset = 1  # type: ignore[misc]
    with pytest.raises((AttributeError, TypeError)):
        place.other = 1  # type: ignore[attr-defined]


def test_it_can_be_replaced_copied_and_pickled() -> None:
    place = Place(name="a", offset=3)
    assert dataclasses.replace(place, offset=4) == Place(name="a", offset=4)
    assert copy.deepcopy(place) == place
    assert pickle.loads(pickle.dumps(place)) == place


def test_wrong_arguments_are_refused() -> None:
    for make in (
        lambda: Place(),  # type: ignore[call-arg]
        lambda: Place("a"),  # type: ignore[misc, call-arg]
        lambda: Place(name="a", more=1),  # type: ignore[call-arg]
    ):
        with pytest.raises(TypeError, match=r"Place\.__init__"):
            make()


def test_a_class_that_needs_more_than_its_fields_is_refused() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class WithFactory:
        names: list[str] = field(default_factory=list)

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Checked:
        number: int

        def __post_init__(self) -> None:
            assert self.number > 0

    @dataclass(frozen=True, kw_only=True)
    class Unslotted:
        number: int

    for cls in (WithFactory, Checked):
        with pytest.raises(AssertionError):
            quick_init(cls)
    with pytest.raises(KeyError):
        quick_init(Unslotted)
