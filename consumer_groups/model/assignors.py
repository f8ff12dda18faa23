"""Server-side assignors by name (group.consumer.assignors). The functions are in `log.vocabulary.group_assignors`.

The consumer protocol is always cooperative: members release only the partitions that the new target takes from them, and
continue to read the rest. "sticky" and "cooperative-sticky" differ only in this respect in classic groups, so here they are
the same, and both equal "uniform", Kafka's name for the sticky assignor of a coordinator.
"""

from typing import Final

from barnabas.log.vocabulary.group_assignors import GroupAssignor, assign_range, assign_round_robin, assign_sticky

RANGE: Final = "range"
ROUND_ROBIN: Final = "roundrobin"
STICKY: Final = "sticky"
COOPERATIVE_STICKY: Final = "cooperative-sticky"
UNIFORM: Final = "uniform"

ASSIGNORS: dict[str, GroupAssignor] = {
    RANGE: assign_range,
    ROUND_ROBIN: assign_round_robin,
    STICKY: assign_sticky,
    COOPERATIVE_STICKY: assign_sticky,
    UNIFORM: assign_sticky,
}
