"""Connections between voters, and the messages on them."""
