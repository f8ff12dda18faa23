"""Decisions of the active controller about users, permissions and quotas."""
