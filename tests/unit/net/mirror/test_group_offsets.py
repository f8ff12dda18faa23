"""Where groups are moved while the mirror lags behind them."""

from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.programs.mirror import group_offsets
from barnabas.net.programs.mirror.group_offsets import GroupOffsets
from barnabas.net.programs.mirror.source import Source

T0 = TopicPartition("t", 0)
COPY = TopicPartition("west.t", 0)


class Copies(GroupOffsets):
    """The copy of a record has twice its offset."""

    def __init__(self, source: Source) -> None:
        super().__init__(source, groups=["*"], prefix="west.", bootstrap="", security={})
        self.here: dict[TopicPartition, int] = {}
        self.searches = 0

    async def _copy_of(self, admin: Any, copy: TopicPartition, original: int) -> int:
        self.searches += 1
        return 2 * original

    async def _commit(self, group: str, moves: Any) -> bool:
        self.here.update(moves)
        return True


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    class NoAdmin:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        async def __aenter__(self) -> "NoAdmin":
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

    async def groups(patterns: Any) -> list[str]:
        return ["g"]

    async def committed(group: str) -> dict[TopicPartition, int]:
        return {T0: 100, TopicPartition("not mirrored", 0): 5}

    async def here(admin: Any, group: str) -> dict[TopicPartition, int]:
        return found.here

    source: Any = SimpleNamespace(groups=groups, committed=committed)
    found = Copies(source)
    monkeypatch.setattr(group_offsets, "Admin", NoAdmin)
    monkeypatch.setattr(group_offsets, "_offsets_here", here)
    return found


async def test_a_group_that_is_ahead_of_the_mirror_moves_as_the_mirror_does(copies: Copies) -> None:
    for position, target in ((30, 60), (80, 160), (150, 200)):
        assert await copies.sync({T0: position}) == 1 and copies.here == {COPY: target}
    assert await copies.sync({T0: 160}) == 0 and copies.searches == 3, "nothing has changed"


async def test_a_group_that_is_further_here_stays(copies: Copies) -> None:
    copies.here = {COPY: 250}
    assert await copies.sync({T0: 150}) == 0 and copies.here == {COPY: 250}
