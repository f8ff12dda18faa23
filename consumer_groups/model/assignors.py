"""Server-side assignors by their names (group.consumer.assignors). The functions are in `log.group_assignors`.

The protocol in which the coordinator assigns is always cooperative: members give up only what the new target takes from them,
and go on with the rest. So "sticky" and "cooperative-sticky", which in classic groups differ in just that, are one here, and
both equal "uniform", Kafka's name for the sticky assignor of a coordinator.
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
