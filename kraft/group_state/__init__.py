"""The state of consumer groups and transactions in the quorum: slots, offsets, their records."""
