"""Records as Arrow data and back: conversions, no I/O."""
