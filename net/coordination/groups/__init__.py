"""The shell of consumer_groups: slots, their timers, and one quorum append at a time for all slots."""
