"""The in-sync replica set of a partition, seen by its leader and by its followers."""
