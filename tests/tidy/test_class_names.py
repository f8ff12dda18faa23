"""One meaning per name: no new public class has the name of another one.

The names below stand in several files; most are words that mean the right thing in their own room. Rename a class, and take its
name off the list; the list does not grow.
"""

import ast
from collections import Counter
from typing import Final

from tidy.source_tree import production_files

SHARED: Final = """
Admin Admission Answer AppendInfo BatchHandles Broker Call Change Chunk ClassicMembership Client Codec Columns
Connection Consumer Cursor Decision Decoding Departures Fault FaultPlan FetchSettings Field FileRegion Follower
Following Gap GroupState Guard Handle Injection Intake IsrMember Leader ListedGroup Listener LogEnds LogRead
Membership Message Options Outcome Part Permit Picture Piece Place Places Plan Policy Ports Position Producer
ProducerIdentity Progress QuorumNetwork Reading Record ReplicaCounts Schema Segment ShareConsumer Source
SourcePositions Span Subscriber Subscription TableHandle TableWriter Taken TokenBucket Transaction Truncate
UnreadablePositionError Verdict Watch
"""


def test_no_new_class_has_the_name_of_another_one() -> None:
    names = Counter(
        node.name
        for file in production_files()
        for node in file.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    shared = {name for name, count in names.items() if count > 1}
    known = set(SHARED.split())
    assert shared - known == set(), "choose another name, or use the class that has it"
    assert known - shared == set(), "these names have one meaning now: take them off the list"
