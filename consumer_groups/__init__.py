"""Coordinators of consumer groups: pure state machines, no I/O at all."""
