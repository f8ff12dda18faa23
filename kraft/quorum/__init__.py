"""The port of the quorum: the guarantees of a log of committed commands, the voters, and a quorum in memory."""
