"""Which faults hold for which broker, of those that were asked for."""

from barnabas.net.testing.faults.fault_plan import Asked, FaultPlan
from barnabas.net.testing.faults.orders import (
    Answer,
    DropConnections,
    Faults,
    RequestFault,
    decode_answer,
    decode_order,
    encode,
)
from barnabas.net.testing.faults.request_faults import RequestFaults

ADDRESSES = {node_id: [("127.0.0.1", 9000 + node_id), ("127.0.0.1", 9100 + node_id)] for node_id in range(3)}


def test_a_cut_hits_both_sides_and_nobody_else() -> None:
    plan = FaultPlan(addresses=ADDRESSES)
    cut = Asked(brokers=frozenset({0}), cut_from=frozenset({1, 0}))
    plan.asked.append(cut)
    assert plan.of(0).cut == (("127.0.0.1", 9001), ("127.0.0.1", 9101))
    assert plan.of(1).cut == (("127.0.0.1", 9000), ("127.0.0.1", 9100))
    assert plan.of(2) == Faults()
    plan.asked.append(Asked(brokers=frozenset({0}), cut_from=frozenset({1})))
    plan.asked.remove(cut)
    assert len(plan.of(0).cut) == 2  # the other cut holds still


def test_both_sides_of_a_cut_know_it() -> None:
    plan = FaultPlan(addresses=ADDRESSES)
    plan.asked.append(Asked(brokers=frozenset({0}), cut_from=frozenset({1})))
    assert plan.is_cut(0, 1) and plan.is_cut(1, 0)
    assert not plan.is_cut(0, 2) and not plan.is_cut(2, 1)


def test_a_cut_of_the_quorum_leaves_the_brokers_connections() -> None:
    plan = FaultPlan(addresses=ADDRESSES)
    plan.asked += [Asked(brokers=frozenset({n}), cut_from=frozenset({0, 1, 2}), is_of_quorum=True) for n in range(3)]
    assert plan.of(2).cut == (("127.0.0.1", 9100), ("127.0.0.1", 9101))


def test_delays_and_offsets_of_clocks_add_up() -> None:
    plan = FaultPlan(addresses=ADDRESSES)
    both, one = frozenset({0, 1}), frozenset({1})
    plan.asked += [
        Asked(brokers=both, network_delay_ms=10, disk_delay_ms=1),
        Asked(brokers=one, network_delay_ms=20, is_disk_full=True, clock_offset_ms=-2),
        Asked(brokers=frozenset({0, 1, 2}), clock_offset_ms=5),
    ]
    told = [
        (it.network_delay_ms, it.disk_delay_ms, it.is_disk_full, it.clock_offset_ms) for it in map(plan.of, range(3))
    ]
    assert told == [(10, 1, False, 5), (30, 1, True, 3), (0, 0, False, 5)]


def test_orders_and_answers_are_lines() -> None:
    fault = RequestFault(api=0, error=6, client_id="billing", tokens="/tmp/hits")
    for order in (Faults(cut=(("::1", 9092),), requests=(fault,)), DropConnections(client_id="billing")):
        line = encode(order)
        assert line.endswith(b"\n") and line.count(b"\n") == 1 and decode_order(line) == order
    assert decode_answer(encode(Answer(result=3))) == Answer(result=3)


def test_hits_are_counted_by_all_brokers_together(tmp_path: object) -> None:
    folder = str(tmp_path)
    for number in range(3):
        with open(f"{folder}/{number}", "wb"):
            pass
    brokers = [RequestFaults(), RequestFaults()]
    for faults in brokers:
        faults.active = (RequestFault(api=0, tokens=folder), RequestFault(api=1, client_id="billing"))
    assert brokers[0].take(1, "other") is None and brokers[0].take(1, "billing") is not None
    assert brokers[0].take(0, "replica-1") is None  # never those of brokers
    hits = [brokers[turn % 2].take(0, "any") is not None for turn in range(5)]
    assert hits == [True, True, True, False, False]
