"""Plays every transcript of this folder. The first line of each says in which world: `# world: cluster` or `# world: group`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from .cluster_world import ClusterWorld
from .group_world import GroupWorld
from .transcript import World, parse, play, render

FOLDER = Path(__file__).parent
TRANSCRIPTS = sorted(FOLDER.glob("*.txt"))
WORLDS: dict[str, Callable[[], World]] = {"cluster": ClusterWorld, "group": GroupWorld}
FIRST_LINE = "# world: "


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text(encoding="utf-8")
    first = text.partition("\n")[0]
    assert first.startswith(FIRST_LINE), f"{path.name} begins with {FIRST_LINE}cluster or group"
    played = render(play(parse(text), WORLDS[first.removeprefix(FIRST_LINE)]()))
    if request.config.getoption("--rewrite", default=False):
        path.write_text(played, encoding="utf-8")
    assert played.splitlines() == text.splitlines() or request.config.getoption("--rewrite", default=False)


def test_a_transcript_is_rendered_as_it_was_written() -> None:
    text = "# world: cluster\n\n# why\ncluster 3\nslots\n----\none\ntwo\n\nkill 0\n----\nnothing\n"
    assert render(parse(text)) == text
