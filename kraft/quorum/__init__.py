"""The port of the quorum: what a log of committed commands promises, who votes, and a quorum in memory."""
