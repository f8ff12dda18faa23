"""Oracles of the whole-cluster simulation: each watches one kind of promise, by reading brokers and by hearing clients."""
