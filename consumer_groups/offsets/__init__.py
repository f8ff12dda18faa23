"""Committed offsets: commits, expiry, resets, and Kafka's form of them."""
