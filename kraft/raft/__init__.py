"""The quorum of real voters round the consensus core of pysyncobj: on a loop, in a thread, and its recovery."""
