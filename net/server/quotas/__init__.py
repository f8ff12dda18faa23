"""Quotas: how much of this broker an entity has used, and how long it waits. Pure: no I/O, no loop, no clock."""
