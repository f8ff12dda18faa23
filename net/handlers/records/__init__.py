"""Produce and fetch."""
