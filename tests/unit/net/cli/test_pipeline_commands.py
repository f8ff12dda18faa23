"""`barnabas pipeline` without Spark: validation, status, stop and reset."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from unit.net.cli.fake_cluster import FakeCluster

from barnabas.net.cli.pipeline.checks import located
from barnabas.net.client.connection.errors import NoBrokersAvailableError
from barnabas.net.programs.pipeline.files import read_pipeline
from barnabas.net.programs.pipeline.state import RunProgress, RunState, StateFolder

TEXT = 'name = "p"\n[source]\ntopics = ["t"]\nvalue = { format = "text" }\n[sink]\nconsole = true\n'


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "p.toml").write_text(TEXT)
    return str(tmp_path / "p.toml")


def state_of(file: str) -> StateFolder:
    folder = StateFolder(Path(file).parent / "barnabas-pipelines/p")
    folder.prepare()
    return folder


def test_validate(run: Any, file: str) -> None:
    assert run("pipeline", "validate", file) == (0, f"{file}: valid\n", "")
    code, out, _ = run("pipeline", "validate", file, "-f", "json")
    assert code == 0 and '"sources": ["topic"]' in out


def test_topics_that_do_not_exist_are_told_at_their_places(run: Any, file: str) -> None:
    Path(file).write_text(
        'name = "p"\nsources.a = { topics = ["t", "tt"], value = { format = "text" } }\n'
        'sources.b = { pattern = "x.*", value = { format = "text" } }\n'
        '[[steps]]\nsql = "SELECT text FROM a UNION ALL SELECT text FROM b"\n'
        '[sink]\ntopic = "u"\n[errors]\naction = "dead-letter"\ntopic = "dead"\n'
    )
    for verb in ("validate", "plan"):
        code, out, err = run("pipeline", verb, file)
        assert (code, out) == (2, "")
        found = err.splitlines()
        assert found[0].startswith(f"barnabas: {file}:2:30: sources.a.topics[2]: there is no topic 'tt'")
        assert "(did you mean t?)" in found[0] and found[0].endswith("or run `barnabas topic create tt`")
        assert found[1].startswith(f"barnabas: {file}:3:15: sources.b.pattern: 'x.*' matches no topic")
        assert found[2].startswith(f"barnabas: {file}:7:1: sink.topic: there is no topic 'u'")
        assert found[3].startswith(f"barnabas: {file}:10:1: errors.topic: there is no topic 'dead'") and len(found) == 4
    assert run("pipeline", "validate", file, "--offline") == (0, f"{file}: valid\n", "")


def test_topics_of_another_cluster_are_looked_up_there(run: Any, file: str) -> None:
    other = 'topics = ["only-there"]\nbootstrap = "127.0.0.1:1"\n'
    Path(file).write_text(TEXT.replace('topics = ["t"]\n', other))
    code, _, err = run("pipeline", "validate", file)
    assert code == 2 and err.startswith(f"barnabas: {file}:4:1: source.bootstrap: ") and "no topic" not in err
    Path(file).write_text(TEXT.replace('topics = ["t"]\n', other + 'config = "other.properties"\n'))
    code, _, err = run("pipeline", "validate", file)
    assert code == 2 and f"{file}:5:1: source.config: the file " in err and "cannot be read" in err


def test_without_brokers_the_file_alone_can_be_checked(run: Any, file: str, cluster: FakeCluster) -> None:
    cluster.failure = NoBrokersAvailableError("no broker answers: localhost:9092")
    code, _, err = run("pipeline", "validate", file)
    assert code == 2 and err.startswith(f"barnabas: {file}:1:1: bootstrap: no broker answers: localhost:9092: start")
    assert "`barnabas pipeline validate --offline`" in err
    assert run("pipeline", "validate", file, "--offline")[0] == 0


def test_the_folder_of_a_sqlite_file_must_exist(run: Any, file: str) -> None:
    Path(file).write_text(TEXT.replace("console = true", 'table = "t"\ndatabase = "sqlite:none/web.db"'))
    code, _, err = run("pipeline", "validate", file)
    assert (
        code == 2 and f"{file}:7:1: sink.database: is in the folder {Path(file).parent / 'none'}, which does not" in err
    )
    (Path(file).parent / "none").mkdir()
    assert run("pipeline", "validate", file)[0] == 0


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("sink.delta: the table has no log", "5:1: sink.delta: the table has no log"),
        ("sink.key names 'x', but", "5:1: sink.key names 'x', but"),
        ("source input: no JSON", "2:1: source input: no JSON"),
        ("step 1 (input): no column", "5:1: step 1 (input): no column"),
        ("step 2 (input): no column", "7:1: step 2 (input): no column"),
        ("the driver was killed", ""),
    ],
)
def test_an_error_of_the_driver_gets_the_place_of_its_key(file: str, error: str, told: str) -> None:
    """A key that the file does not have gets the place of its table."""
    heading = "[[steps]]\nsql = 'SELECT 1'\n" * 2 if error.startswith("step") else ""
    Path(file).write_text(TEXT.replace("[sink]", heading + "[sink]"))
    assert located(read_pipeline(Path(file)), error) == (f"{file}:{told}" if told else error)


def test_each_problem_is_a_line(run: Any, file: str) -> None:
    Path(file).write_text(TEXT.replace("console", "consol").replace('"text"', '"tex"'))
    code, out, err = run("pipeline", "validate", file)
    assert (code, out) == (2, "")
    assert f"barnabas: {file}:4:11: source.value.format: is 'tex'" in err
    assert f"barnabas: {file}:6:1: sink.consol: unknown key (did you mean console?)" in err


def test_status_before_the_first_run_and_after_a_failure(run: Any, file: str) -> None:
    code, out, _ = run("pipeline", "status", file)
    assert code == 0 and "never run" in out
    folder = state_of(file)
    folder.write_run(RunState(state="failed", restarts=5, last_error="no broker answers"))
    folder.write_progress(RunProgress(batches=3, records=10, bad_records=1, rows=9, lag=4))
    code, out, _ = run("pipeline", "status", file)
    shown = dict(line.split("  ", 1) for line in out.splitlines())
    assert code == 3 and shown["state"].strip() == "failed" and shown["lag"].strip() == "4"
    assert shown["last error"].strip() == "no broker answers" and shown["bad records"].strip() == "1"


def test_a_pipeline_whose_process_is_gone_has_died(run: Any, file: str) -> None:
    state_of(file).write_run(RunState(state="running"))
    code, out, _ = run("pipeline", "status", file)
    assert code == 3 and "died" in out
    assert run("pipeline", "stop", file)[2] == "pipeline p is not running\n"


def test_a_pipeline_runs_once_at_a_time_and_is_not_reset_meanwhile(run: Any, file: str) -> None:
    folder = state_of(file)
    with folder.locked("run"):
        folder.note_pid("run", 1)
        code, _, err = run("pipeline", "run", file)
        assert code == 1 and "pipeline p is running already (process 1)" in err
        code, _, err = run("pipeline", "reset", file, "--yes")
        assert code == 1 and "`barnabas pipeline stop` first" in err


def test_the_driver_of_a_killed_run_keeps_its_state_until_it_has_ended(run: Any, file: str) -> None:
    folder = state_of(file)
    before = folder.generation()
    with folder.locked("driver"):
        code, _, err = run("pipeline", "reset", file, "--yes")
        assert code == 1 and "try again in a few seconds" in err and folder.generation() == before
    assert run("pipeline", "reset", file, "--yes")[0] == 0


def test_reset_needs_a_confirmation(run: Any, file: str) -> None:
    folder = state_of(file)
    before = folder.generation()
    code, _, err = run("pipeline", "reset", file)
    assert code == 2 and "Add --yes to confirm" in err and folder.generation() == before
    assert run("pipeline", "reset", file, "--yes")[:2] == (0, "reset p\n")
    assert folder.generation() != before


@pytest.mark.parametrize(
    ("sink", "told"),
    [
        (
            'table = "t"\ndatabase = "sqlite:x.db"\nwrite = "upsert"\nkey = ["id"]',
            "that the source has deleted meanwhile; --empty-sink",
        ),
        ('table = "t"\ndatabase = "sqlite:x.db"', "are there twice then; --empty-sink removes them"),
        ('topic = "out"', "Rows that the sink has stay there."),
        ('parquet = "rows"', "It writes a new folder."),
    ],
)
def test_reset_says_what_it_leaves_in_the_sink_and_empties_tables_only(
    run: Any, file: str, sink: str, told: str
) -> None:
    Path(file).write_text(TEXT.partition("[sink]")[0] + f"[sink]\n{sink}\n")
    folder = state_of(file)
    folder.generation()
    code, _, err = run("pipeline", "reset", file, "--yes")
    assert code == 0 and told in err and not folder.wants_empty_sink
    code, _, err = run("pipeline", "reset", file, "--yes", "--empty-sink")
    if "table" in sink:
        assert code == 0 and "It removes all rows of the table t first." in err and folder.wants_empty_sink
        run("pipeline", "reset", file, "--yes")
        assert not folder.wants_empty_sink
    else:
        assert code == 2 and "--empty-sink is for sinks with table" in err and not folder.wants_empty_sink


def test_a_batch_that_is_written_is_not_written_again(run: Any, file: str) -> None:
    Path(file).write_text('mode = "batch"\n' + TEXT)
    state_of(file).write_progress(RunProgress(batches=1))
    code, _, err = run("pipeline", "run", file)
    assert code == 1 and "the batch p is written already: `barnabas pipeline reset` first" in err


def test_a_reset_leaves_other_files_in_the_folder(run: Any, file: str) -> None:
    Path(file).write_text('state = "data"\n' + TEXT)
    mine = Path(file).parent / "data" / "mine"
    mine.mkdir(parents=True)
    (mine / "years-of-work").touch()
    (mine.parent / "notes.txt").touch()
    folder = StateFolder(mine.parent)
    folder.generation()
    assert run("pipeline", "reset", file, "--yes")[0] == 0
    assert {item.name for item in mine.parent.iterdir()} == {"mine", "notes.txt", "run.lock", "driver.lock"}
    assert (mine / "years-of-work").exists()


@pytest.mark.parametrize("state", [".", "..", "sub/.."])
def test_the_folder_of_the_file_is_no_state_folder(run: Any, file: str, state: str) -> None:
    Path(file).write_text(f'{TEXT.splitlines()[0]}\nstate = "{state}"\n' + TEXT.partition("\n")[2])
    code, _, err = run("pipeline", "validate", file)
    assert code == 2 and f"{file}:2:1: state: is '{state}', where the file itself is" in err


def test_a_reset_that_was_interrupted_is_finished(file: str) -> None:
    """Without its checkpoint but with its generation, the next run would count from 0 under an id whose rows are written."""
    folder = state_of(file)
    before = folder.generation()
    folder.checkpoint.mkdir()
    (folder.path / "resetting").touch()  # killed before anything was removed
    folder.finish_removal()
    assert not folder.checkpoint.exists() and folder.generation() != before
    assert not (folder.path / "resetting").exists()


def test_a_process_that_has_the_number_of_a_killed_run_is_not_stopped(run: Any, file: str) -> None:
    folder = state_of(file)
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        folder.note_pid("run", stranger.pid)  # of a run that was killed
        with folder.locked("run"):  # as `reset` holds it
            code, _, _ = run("pipeline", "stop", file, "--timeout", "0.5s")
        assert code != 0 and stranger.poll() is None
        assert run("pipeline", "stop", file)[2] == "pipeline p is not running\n"
    finally:
        stranger.kill()
        stranger.wait()


def test_another_pipeline_does_not_go_on_with_the_state_of_this_one(run: Any, file: str) -> None:
    text = 'state = "state"\n' + TEXT
    Path(file).write_text(text)
    folder = StateFolder(Path(file).parent / "state")
    folder.prepare()
    folder.write_pipeline(text.replace('"p"', '"q"'), is_yaml=False)
    code, _, err = run("pipeline", "run", file)
    assert code == 1 and "has the state of the pipeline q, not of p" in err


def test_the_state_is_for_its_owner_only(file: str) -> None:
    assert state_of(file).path.stat().st_mode & 0o077 == 0
