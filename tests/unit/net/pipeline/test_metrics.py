"""The metrics of a pipeline, as Prometheus reads them."""

from barnabas.net.programs.pipeline.metrics import rendered
from barnabas.net.programs.pipeline.state import RunProgress, RunState


def values(text: str) -> dict[str, float]:
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {
        name.removeprefix("barnabas_pipeline_").removesuffix('{pipeline="p"}'): float(value) for name, value in pairs
    }


def test_what_a_running_pipeline_tells() -> None:
    progress = RunProgress(
        batches=3, records=10, bad_records=1, rows=9, lag=4, last_batch_ms=1_500, state_rows=2**40, state_bytes=5,
        watermark="1970-01-01T00:00:10.000Z",
    )  # fmt: skip
    text = rendered("p", RunState(state="running", restarts=2, last_error="secret"), progress)
    assert values(text) == {
        "running": 1,
        "restarts_total": 2,
        "batches_total": 3,
        "records_total": 10,
        "bad_records_total": 1,
        "rows_total": 9,
        "lag_records": 4,
        "last_batch_timestamp_seconds": 1.5,
        "watermark_timestamp_seconds": 10,
        "state_rows": 2**40,
        "state_bytes": 5,
    }
    assert "secret" not in text and text.endswith("\n")
    assert text.count("# HELP") == text.count("# TYPE") == len(values(text))


def test_before_the_first_micro_batch_what_is_not_known_is_absent() -> None:
    found = values(rendered("p", None, RunProgress()))
    assert found["running"] == 0
    assert not found.keys() & {"lag_records", "last_batch_timestamp_seconds", "watermark_timestamp_seconds"}
