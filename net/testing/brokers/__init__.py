"""Brokers under test: in threads of this process, or a process each."""
