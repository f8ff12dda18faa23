"""The consensus of voters: an engine that holds pysyncobj, and the parts that make it safe. No I/O, no loop, no logger."""
