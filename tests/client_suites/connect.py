"""Kafka Connect with exactly-once source while its workers and the brokers that it depends on are killed by -9."""

import os
from pathlib import Path
from random import Random

from integration import copied_lines, java_client
from integration.cluster import Cluster
from integration.harm import Harm

VERSION = os.environ.get("KAFKA_CLIENTS", "4.1.1")


async def run(folder: Path, cluster: Cluster, *, kills: int, seed: int) -> int:
    """Return 0; a violation is raised."""
    libraries = java_client.fetch(folder, VERSION, "connect.xml")
    assert libraries is not None, "Maven Central is out of reach"
    rng = Random(seed)

    async def steps(harm: Harm) -> None:
        for number in range(kills):
            await _kill(harm, rng)
            print(f"{number + 1} of {kills} kills: {dict(harm.kills)}", flush=True)

    await cluster.ready()
    harm = await copied_lines.under_harm(folder, cluster, libraries, steps)
    print(f"{harm.done} lines, each once; slowest recovery {harm.slowest_s:.1f} s")
    return 0


async def _kill(harm: Harm, rng: Random) -> None:
    match rng.randrange(7):
        case 0 | 1:
            await harm.program(rng.randrange(len(copied_lines.WORKERS)))
        case 2:
            await harm.leader(
                *rng.choice([(copied_lines.TOPIC, 0), (copied_lines.CONFIGS, 0), (copied_lines.OFFSETS, 3)])
            )
        case 3:
            await harm.group_coordinator(copied_lines.GROUP)
        case 4 | 5:
            source = rng.choice(copied_lines.SOURCES)
            await harm.transaction_coordinator(copied_lines.transactional_id(source))
        case _:
            await harm.controller()
