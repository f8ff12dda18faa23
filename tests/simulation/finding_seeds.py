"""Seeds that found planted bugs which the first seed does not find: they are tried first, and only then all the others.

A change of the product or of a simulation may bring a seed onto another course. Then the bug is looked for from the first seed
on, and the summary of the run says which seed belongs here.
"""

from typing import Final

FINDING_SEEDS: Final[dict[tuple[str, str], int]] = {  # by level and name
    ("partition", "a fetch of an earlier leader epoch counts (KIP-320)"): 373,
    ("partition", "a follower joins behind earlier leaders (KIP-320)"): 10,
    ("partition", "a leader commits by its own value of min.insync.replicas"): 3,
    ("partition", "counts before flush"): 230,
    ("partition", "reports before flush"): 9,
    ("partition", "the last replica standing is elected after a lossy restart (KIP-966)"): 86,
    ("partition", "truncates while in the isr"): 8,
    ("partition", "whoever fetches joins the ISR"): 10,
    ("transactions", "the index of aborted transactions is not rebuilt after a crash"): 81,
    ("log", "DeleteRecords deletes a record too many"): 7,
    ("log", "a refusal forgets producers of what is in the log"): 46,
    ("log", "a removed snapshot of producers comes back"): 10,
    ("log", "a snapshot of producers is taken within an append"): 8,
    ("log", "a truncation keeps a batch too many"): 1,
    ("log", "a truncation leaves the recovery point above the end"): 47,
    ("log", "recovery keeps a torn batch"): 23,
    ("log", "recovery overlooks a gap between segments"): 137,
    ("log", "retention forgets segments that the disk has"): 211,
    ("log", "the index of aborted transactions is not flushed"): 1,
    ("journal", "a flush counts for entries that replaced what it flushed"): 30,
    ("journal", "a rename without a flush of the folder"): 5,
    ("journal", "the journal is trimmed before its snapshot is on the disk"): 13,
    ("quorum", "a commit index beyond what was compared"): 6,
    ("quorum", "a minority commits"): 6,
    ("cluster", "a repeated creation has the deleted topic's id"): 15,
    ("cluster", "a shrink before its commit"): 1,
    ("cluster", "a wiped replica says nothing"): 13,
    ("cluster", "group answers before their commit"): 5,
    ("cluster", "nobody is relieved when min.insync.replicas falls"): 9,
    ("cluster", "the last leader before eligible ones"): 22,
    ("cluster", "who has lost data stays eligible"): 15,
    ("groups", "a commit repeated across a fence"): 2,
    ("groups", "a forward jump is taken for a gap"): 1,
    ("groups", "a new coordinator has an old snapshot"): 5,
    ("groups", "commits of stale members are taken"): 1,
    ("transactions in clusters", "stable offsets do not wait"): 9,
    ("transactions in clusters", "the next transaction joins the open one"): 1,
    ("flushes", "an acknowledgement before the flush"): 2,
}
