"""The state of consumer groups in the quorum: slots, offsets, their records."""
