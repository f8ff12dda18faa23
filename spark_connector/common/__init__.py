"""Shared by reading and writing: options, columns, connections, the sink's ledger."""
