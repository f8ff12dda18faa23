"""One node's view of the committed metadata: replay, snapshots, the feed for brokers that do not vote."""
