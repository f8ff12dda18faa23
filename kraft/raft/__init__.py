"""The quorum of real voters round the consensus core of pysyncobj: votes, replication, membership."""
