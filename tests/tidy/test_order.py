"""Nothing runs in the order of a set of objects: it follows their addresses, so two runs of one seed would differ."""

import re
from typing import Final

from tidy.source_tree import files_of_tests, production_files

# asyncio.TaskGroup keeps its tasks in a set, too, and cancels them in its order.
BY_ADDRESS: Final = re.compile(r"\b(?:frozen)?set\[\"?asyncio\.(?:Task|Future|Handle|TimerHandle)|asyncio\.TaskGroup\(")
# Clients wait for such sets as a whole, or cancel timers, whose order has no effect.
NOT_SIMULATED: Final = ("net/client/", "net/cli/", "scripts/", "spark_connector/", "pyspark_barnabas")


def test_no_set_holds_tasks_futures_or_timers() -> None:
    files = [file for file in production_files() if not file.name.startswith(NOT_SIMULATED)]
    files += [file for file in files_of_tests() if file.name.startswith("tests/simulation/")]
    found = [
        f"{file.name}:{number}"
        for file in files
        for number, line in enumerate(file.text.splitlines(), 1)
        if BY_ADDRESS.search(line)
    ]
    assert not found, f"{found}: keep them in a dict, which has the order of insertion"
