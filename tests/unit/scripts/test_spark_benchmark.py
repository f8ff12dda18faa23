"""What `scripts/benchmark spark` makes of its measurements: ratios the right way round, and each process counted once."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "scripts/benchmarks"
TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture(autouse=True)
def found_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield


def judged(ours: list[tuple[float, float, float]], theirs: list[tuple[float, float, float]]) -> int:
    """Goals that are missed. A sample: seconds of the wall, of Spark's CPU and of the brokers' for a row."""
    import spark

    samples = {"read topic": ours, "read kafka": theirs}
    medians = {name: some[0] for name, some in samples.items()}
    missed: int = spark.Suite._judge(object.__new__(spark.Suite), samples, medians)
    return missed


def test_a_ratio_above_one_says_that_the_connector_costs_less(capsys: pytest.CaptureFixture[str]) -> None:
    assert judged([(4.0, 2.0, 1.0)] * 2, [(6.0, 4.0, 2.0), (6.0, 5.0, 2.0)]) == 0
    line = capsys.readouterr().out.splitlines()[-1].split()
    assert line[-9:] == ["2.00", "2.00-2.50", "2.00", "1.50", "goal:", "at", "least", "1", "met"]
    assert judged([(1.0, 4.0, 0.0)], [(1.0, 2.0, 0.0)]) == 1
    line = capsys.readouterr().out.splitlines()[-1].split()
    assert line[-9:] == ["0.50", "0.50-0.50", "0.50", "1.00", "goal:", "at", "least", "1", "MISSED"]


def test_with_brokers_is_the_sum_of_both(capsys: pytest.CaptureFixture[str]) -> None:
    judged([(1.0, 2.0, 2.0)], [(1.0, 3.0, 9.0)])
    assert capsys.readouterr().out.splitlines()[-1].split()[-7] == "3.00"


def proc(folder: Path, **processes: tuple[int, float, float]) -> Path:
    """Parent, seconds of its own (half of them the system's) and of children that it waited for; by `p` and pid."""
    for item in folder.glob("*/stat"):
        item.unlink()
        item.parent.rmdir()
    for name, (parent, own_s, waited_s) in processes.items():
        (folder / name[1:]).mkdir()
        times = " ".join(str(int(TICKS * seconds / 2)) for seconds in (own_s, own_s, waited_s, waited_s))
        (folder / name[1:] / "stat").write_text(f"{name[1:]} (a (b) c) S {parent} {'0 ' * 9}{times} 20 0")
    (folder / "self").mkdir(exist_ok=True)
    return folder


def seconds(tree: Any) -> dict[int, float]:
    return {pid: times.both_s for pid, times in tree.items()}


def test_each_process_of_a_tree_counts_once_and_others_do_not(tmp_path: Path) -> None:
    from process_trees import tree_cpu

    proc(tmp_path, p10=(1, 2, 1), p11=(10, 4, 0), p12=(11, 8, 0), p20=(10, 16, 0), p21=(20, 32, 0), p30=(1, 64, 0))
    assert seconds(tree_cpu([10], [20], tmp_path)) == {10: 3, 11: 4, 12: 8}
    assert seconds(tree_cpu([10, 11], [20], tmp_path)) == {10: 3, 11: 4, 12: 8}
    assert seconds(tree_cpu([20], (), tmp_path)) == {20: 16, 21: 32}


def test_what_was_spent_between_two_looks(tmp_path: Path) -> None:
    from process_trees import spent, tree_cpu

    def look(**processes: tuple[int, float, float]) -> Any:
        return tree_cpu([10], (), proc(tmp_path, **processes))

    before = look(p10=(1, 2, 0), p11=(10, 4, 0), p12=(11, 8, 0))
    assert spent(before, before) == 0
    assert spent(before, look(p10=(1, 3, 0), p11=(10, 6, 0), p12=(11, 12, 0), p13=(11, 16, 0))) == 1 + 2 + 4 + 16
    # 12 ended, and 11 waited for it: 4 of the 12 seconds are new.
    assert spent(before, look(p10=(1, 2, 0), p11=(10, 4, 12))) == 4
    # Both ended, and were waited for.
    assert spent(before, look(p10=(1, 2, 18))) == 6
    # 12 ended, and 11 did not wait for it: nothing is known of it.
    assert spent(before, look(p10=(1, 2, 0), p11=(10, 5, 0))) == 1


def test_brokers_count_apart_from_spark_although_they_are_children_of_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import spark
    from process_trees import Times

    me, broker = os.getpid(), 7
    spent_s = {me: 10.0, broker: 100.0}

    def tree(roots: list[int], without: Sequence[int] = ()) -> dict[int, Times]:
        below = {*roots, *((broker,) if me in roots else ())} - {*without}
        return {pid: Times(1, spent_s[pid], 0) for pid in below}

    def run() -> None:
        spent_s[me] += 1
        spent_s[broker] += 2

    monkeypatch.setattr(spark, "tree_cpu", tree)
    suite = object.__new__(spark.Suite)
    suite._cluster = SimpleNamespace(pids=lambda: [broker])
    assert suite._sample(run)[1:] == (1, 2)
