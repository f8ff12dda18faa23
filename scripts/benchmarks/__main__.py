"""`scripts/benchmark`: measures everything in one run, and prints a table with the ratios that the goals are stated in.

`scripts/benchmark o1`, `partitions`, `offsets`, `kafka`, `beside-kafka`, `records`, `calls`, `spark`, `testing` and
`transactions`, `tls` are separate: how a log, a broker and the state of groups scale; the cost of Kafka's protocol compared with
Barnabas' own; Apache Kafka's brokers and clients beside Barnabas'; the cost of a record in memory; the Python calls of one
request; the Spark connector compared with Spark's API alone; clusters inside tests; transactions compared with the same
records without them; TLS compared with plain text. `permissions` measures decisions about them, `capacity` what a broker
spends on bytes, requests, partitions and connections, `idle` what a consumer of many idle partitions does, `cores` what several
brokers on this machine take, `capture` changes of PostgreSQL into topics, `collect` lines of files, `start` the time to the first
acknowledged record, and an idle broker's memory, `stalls` how late the brokers' loops are.

Cases run phase by phase, because only one set of servers should run at a time; within a phase repetition by repetition, so
that the two sides of a ratio are measured within the same minute.
"""

import argparse
import json
import os
import platform
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import beside_kafka
import both_protocols
import calls
import capacity
import capture
import clusters_in_tests
import collected
import cores
import first_record
import idle_partitions
import loop_stalls
import offsets
import one_log
import partitions
import permissions
import record_core
import spark
import tls
import transactions
from cases import PHASES, Scale
from measure import VOID_RETRIES, Meter, Row, take_sample
from report import RATIOS, describe, print_ratios, print_row
from sketches import Sketches

ROOT = Path(__file__).resolve().parents[2]
SKETCHES = ROOT / ".." / "shared" / "research" / "hot_path_prototype"
VERSIONS = ("uvloop", "confluent_kafka", "aiokafka", "redis", "nats")


SUITES = {
    "o1": one_log.main,
    "partitions": partitions.main,
    "offsets": offsets.main,
    "kafka": both_protocols.main,
    "calls": calls.main,
    "beside-kafka": beside_kafka.main,
    "records": record_core.main,
    "spark": spark.main,
    "testing": clusters_in_tests.main,
    "transactions": transactions.main,
    "tls": tls.main,
    "permissions": permissions.main,
    "capacity": capacity.main,
    "idle": idle_partitions.main,
    "cores": cores.main,
    "capture": capture.main,
    "collect": collected.main,
    "start": first_record.main,
    "stalls": loop_stalls.main,
}  # with options of their own: `scripts/benchmark o1 --help`


def main() -> int:
    if len(sys.argv) > 1 and sys.argv[1] in SUITES:
        return SUITES[sys.argv[1]](sys.argv[2:])
    parser = argparse.ArgumentParser(prog="scripts/benchmark", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--quick", action="store_true", help="a fifth of the records, one repetition, no waiting for a quiet machine"
    )
    parser.add_argument("--repeat", type=int, metavar="N", help="samples of each case; the median counts; default: 3")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only cases whose name contains one of these, separated by commas"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples to this file")
    parser.add_argument(
        "--sketches", type=Path, default=find_sketches(), metavar="DIR", help="folder of the hot path study's sketches"
    )
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    options = parser.parse_args()
    wanted = [text.strip() for text in options.only.split(",") if text.strip()]
    repeat = options.repeat or (1 if options.quick else 3)
    scale = Scale(factor=0.2 if options.quick else 1.0)
    sketches = Sketches(options.sketches)
    print(describe_python(), flush=True)
    meter = Meter()
    rows: dict[str, Row] = {}
    for phase in PHASES:
        with phase(scale, sketches) as cases:
            chosen = [case for case in cases if not wanted or any(text in case.name for text in wanted)]
            if options.list:
                print("\n".join(case.name for case in chosen))
                continue
            for _ in range(repeat):
                for case in chosen:
                    take_sample(case, rows.setdefault(case.name, Row()), retries=0 if options.quick else VOID_RETRIES)
            for case in chosen:
                print_row(case.name, rows[case.name])
    if options.list:
        return 0
    print_ratios(rows)
    print(
        f"\nother processes used {meter.others_percent():.0f} % of a core on average; rows with ! have samples of busy moments"
    )
    if options.json is not None:
        options.json.write_text(json.dumps({"python": describe_python(), **describe(rows, RATIOS)}, indent=1) + "\n")
    return 0


def find_sketches() -> Path:
    """Beside this checkout, or beside the one that this work tree belongs to."""
    candidates: Sequence[Path] = [parent / "shared/research/hot_path_prototype" for parent in ROOT.parents]
    return next((path for path in candidates if path.exists()), SKETCHES)


def describe_python() -> str:
    # Debian's build calls the profile-guided target itself and leaves no trace of it in the options.
    is_debian = sys.base_prefix == "/usr"
    optimized = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "") or is_debian
    installed = []
    for name in VERSIONS:
        try:
            installed.append(f"{name} {getattr(__import__(name), '__version__', '')}".strip())
        except ImportError:
            continue
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        model = next(
            (line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine()
        )
    cores = len(os.sched_getaffinity(0))
    build = "with PGO" if optimized else "without PGO"
    return f"Python {platform.python_version()} {build} ({sys.base_prefix}), {cores} cores of {model}; " + ", ".join(
        installed
    )


if __name__ == "__main__":
    sys.exit(main())
