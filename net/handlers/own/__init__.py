"""Handlers of our own protocol."""
