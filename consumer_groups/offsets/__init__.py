"""Committed offsets: commits, expiry, resets, and Kafka's record format for them."""
