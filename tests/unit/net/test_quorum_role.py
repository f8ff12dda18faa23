"""The role of a broker in the quorum: it follows the quorum's configuration; one source closes before the next one listens."""

import asyncio
from typing import Any, cast

from msgspec.structs import replace

from barnabas.kraft.metadata.image import MetadataImage, differences
from barnabas.kraft.node.metadata_node import MetadataPublication
from barnabas.kraft.quorum.quorum import Leadership
from barnabas.kraft.quorum.voters import VoterSet
from barnabas.log.vocabulary.node_address import NodeAddress
from barnabas.net.metadata.quorum_role import QuorumRole
from barnabas.net.metadata.quorum_source import VoterMetadata

ME = 0
VOTERS = tuple(NodeAddress(node_id=number, host="h", port=9093 + number) for number in range(3))
OTHERS = VOTERS[1:]
BEFORE = MetadataImage(offset=10, voters=VOTERS, voters_index=4)
AFTER = replace(BEFORE, offset=12, voters=OTHERS, voters_index=11)


class Source:
    """Publishes what a test says. Its close waits for the test."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log
        self.may_close = asyncio.Event()
        self.may_close.set()

    async def start(self, publish: Any) -> None:
        self.publish = publish
        self.log.append(f"{self.name} started")

    async def close(self) -> None:
        await self.may_close.wait()
        self.log.append(f"{self.name} closed")

    def tell(self, image: MetadataImage) -> None:
        self.publish(
            MetadataPublication(
                image=image,
                changes=differences(image, image),
                group_records=(),
                leader=Leadership(leader_id=1, term=2, is_self=False),
                is_active_controller=False,
            )
        )


class Voter(Source, VoterMetadata):
    def __init__(self, name: str, log: list[str]) -> None:
        Source.__init__(self, name, log)
        self.stored = VoterSet(voters=VOTERS, index=4)

    voters = property(lambda self: self.stored)
    is_voter = property(lambda self: ME in self.stored.ids)
    listens_at = property(lambda self: ("h", 9093))

    def meet(self, voters: VoterSet) -> None:
        self.log.append(f"{self.name} meets {sorted(voters.ids)}")


class Directory:
    def __init__(self) -> None:
        self.told: list[VoterSet] = []
        self.contacts: set[int] = set()
        self.asked: list[set[int]] = []  # whom, each time

    async def voters(self) -> list[VoterSet]:
        self.asked.append(set(self.contacts))
        return self.told

    async def other_cluster(self, node_id: int) -> str | None:
        return ""

    def learn(self, voters: tuple[NodeAddress, ...]) -> None:
        self.contacts |= {voter.node_id for voter in voters}


class World:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.directory = Directory()
        self.sources: list[Source] = []
        self.role = QuorumRole(
            node_id=ME,
            starts_as_voter=True,
            build_voter=lambda _: cast(VoterMetadata, self._made(Voter)),
            build_observer=lambda: cast(Any, self._made(Source)),
            directory=cast(Any, self.directory),
            fatal=self.log.append,
        )

    def _made(self, kind: type[Source]) -> Source:
        self.sources.append(kind(f"{'voter' if kind is Voter else 'observer'} {len(self.sources)}", self.log))
        return self.sources[-1]

    async def removed(self) -> tuple[Source, Source]:
        """The broker is a voter, then the others remove it, and one of them says so. The former voter and the observer."""
        await self.role.start(lambda publication: None)
        (voter,) = self.sources
        voter.tell(BEFORE)
        self.directory.told = [VoterSet(voters=OTHERS, index=11)]
        await self.role.look()
        return voter, self.sources[1]


async def test_a_removed_voter_does_not_come_back_by_an_image_from_before_its_removal() -> None:
    world = World()
    _, observer = await world.removed()
    observer.tell(BEFORE)  # it has caught up with what subscribers have seen, and takes over
    assert not world.role.is_voter
    await world.role.look()
    observer.tell(AFTER)
    await world.role.look()
    assert len(world.sources) == 2, "a learner was started"
    observer.tell(replace(AFTER, offset=20, voters=VOTERS, voters_index=19))  # made a voter again
    await world.role.look()
    assert len(world.sources) == 3 and isinstance(world.sources[2], Voter)
    await world.role.close()


async def test_a_learner_starts_when_the_former_voter_has_closed_its_port() -> None:
    world = World()
    voter, observer = await world.removed()
    voter.may_close.clear()
    observer.tell(AFTER)
    joining = asyncio.create_task(world.role.join())
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(world.sources) == 2 and not joining.done()
    voter.may_close.set()
    assert await joining == ("h", 9093)
    assert world.log == ["voter 0 started", "observer 1 started", "voter 0 closed", "voter 2 started"]
    await world.role.close()


async def test_a_voter_asks_those_that_its_journal_names() -> None:
    """It had missed its own removal. The only voter that was left had never been in its server.properties."""
    world = World()
    await world.role.start(lambda publication: None)
    await asyncio.sleep(0)  # its tasks begin
    await world.role.look()
    assert world.directory.asked == [{0, 1, 2}]
    await world.role.close()
