"""`python -m mutants.search PURE_SEEDS LAST_CLUSTER_SEED`: simulations until one fails; the exit code is then 1."""

import logging
import sys
from itertools import islice

from simulation.history import run_history
from simulation.pure_machines import MACHINES, run

BATCH = 10  # seeds of one machine, before the next has its turn


def main() -> int:
    pure_seeds, last_cluster_seed = (int(value) for value in sys.argv[1:])
    logging.getLogger("barnabas").setLevel(logging.CRITICAL)
    cluster_seeds = iter(range(1, last_cluster_seed + 1))
    for first in range(0, pure_seeds, BATCH):
        for name in MACHINES:
            for seed in range(first, first + BATCH):
                run(name, seed)
        for seed in islice(cluster_seeds, 2):
            if run_history(seed).failure:
                return 1
    return int(any(run_history(seed).failure for seed in cluster_seeds))


if __name__ == "__main__":
    sys.exit(main())
