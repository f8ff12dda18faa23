"""Transactions between brokers: requests to their coordinators, markers to partitions and groups."""
