"""Transactions of a producer, seen by the client: their states, the requests to their coordinator, and transform_once."""
