"""Which mutants a seed chooses."""

from mutants.trees import sample, sites


def test_a_sample_depends_on_its_seed_and_hardly_on_the_rest_of_the_tree() -> None:
    every = sites(["log/partition/recovery.py", "log/partition/segment_swap.py"])
    of_one = [mutant for mutant in every if mutant.module == "log/partition/recovery.py"]
    assert len(every) > len(of_one) > 20
    chosen = sample(every, 20, 1)
    assert chosen == sample(every[::-1], 20, 1) != sample(every, 20, 2)
    remaining = [mutant for mutant in chosen if mutant in of_one]
    assert len(remaining) > 2 and sample(of_one, len(remaining), 1) == remaining
