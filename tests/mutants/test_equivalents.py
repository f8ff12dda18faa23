"""The list of equivalents names changes that are still possible, one place each: else it would hide others."""

from collections import Counter

from mutants.trees import equivalents, sites


def test_each_known_equivalent_can_be_made_at_one_place() -> None:
    known = equivalents()
    assert known
    modules = sorted({module for module, _, _ in known})
    found = Counter(mutant.identity() for mutant in sites(modules))
    assert {identity: found[identity] for identity in known if found[identity] != 1} == {}
