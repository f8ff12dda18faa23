"""One log on disk: its segments, its recovery, its truncation."""
