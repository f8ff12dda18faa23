"""A program that is killed: it writes micro-batches into an Iceberg table, and notes each as Spark's checkpoint does.

python -m unit.spark_connector.iceberg_kills FOLDER BATCHES
"""

import sys
from pathlib import Path

from unit.spark_connector.test_iceberg import Rows, order, writer

PER_BATCH = 3


def main(folder: Path, batches: int) -> None:
    noted = folder / "noted"
    begin = int(noted.read_text()) if noted.exists() else 0
    for batch_id in range(begin, batches):
        batch = Rows([order(batch_id * PER_BATCH + number) for number in range(PER_BATCH)])
        writer(folder, noted=batch_id).write(batch, batch_id)  # type: ignore[arg-type]
        fresh = folder / "noted.tmp"
        fresh.write_text(str(batch_id + 1))
        fresh.rename(noted)
        print(batch_id, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
