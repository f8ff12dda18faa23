"""`Collecting`: the pipeline beside collectors."""

from pathlib import Path
from typing import Any

from barnabas.net.cli.pipeline.collecting import Collecting
from barnabas.net.programs.pipeline.files import read_pipeline

TEXT = 'name = "p"\n[source]\ntopics = ["t"]\nvalue = { format = "text" }\n[sink]\nconsole = true\n'


async def test_a_stop_before_the_pipeline_runs_is_not_lost(tmp_path: Path) -> None:
    """Bounded work reads all files first, and may be stopped meanwhile."""
    (tmp_path / "p.toml").write_text(TEXT)
    context: Any = None  # no source is collected
    collecting = Collecting(read_pipeline(tmp_path / "p.toml"), context, "localhost:1", is_once=True)
    stops: list[str] = []

    async def run() -> str:
        assert stops == ["stopped"]
        return "result"

    collecting.stop()
    assert await collecting.run(run, lambda: stops.append("stopped")) == "result"
