"""Kafka Streams with exactly_once_v2 while its instances and the brokers that it depends on are killed by -9."""

import os
from pathlib import Path
from random import Random

from integration import java_client, word_counts
from integration.cluster import Cluster
from integration.harm import Harm

VERSION = os.environ.get("KAFKA_CLIENTS", "4.1.1")


async def run(folder: Path, cluster: Cluster, *, kills: int, seed: int) -> int:
    """Return 0; a violation is raised."""
    libraries = java_client.fetch(folder, VERSION, "streams.xml")
    assert libraries is not None, "Maven Central is out of reach"
    class_path = java_client.compiled(folder, libraries, "WordCount")
    rng = Random(seed)

    async def steps(harm: Harm) -> None:
        for number in range(kills):
            await _kill(harm, folder, rng)
            print(f"{number + 1} of {kills} kills: {dict(harm.kills)}", flush=True)

    await cluster.ready()
    harm = await word_counts.under_harm(folder, cluster, class_path, steps, seed=seed)
    print(f"{harm.done} updates, each once; slowest recovery {harm.slowest_s:.1f} s")
    return 0


async def _kill(harm: Harm, folder: Path, rng: Random) -> None:
    match rng.randrange(7):
        case 0 | 1:
            await harm.program(rng.randrange(len(word_counts.NAMES)))
        case 2:
            await harm.leader(rng.choice(word_counts.TOPICS), rng.randrange(word_counts.PARTITIONS))
        case 3:
            await harm.group_coordinator(word_counts.APPLICATION)
        case 4 | 5:
            await harm.transaction_coordinator(word_counts.transactional_id(folder, rng.choice(word_counts.NAMES)))
        case _:
            await harm.controller()
