"""The shell of consumer_groups: slots, their timers, one quorum append for all."""
