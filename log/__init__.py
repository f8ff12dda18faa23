"""What one broker knows about one partition: segments, indexes, checkpoints, recovery."""
