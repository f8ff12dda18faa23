"""Membership of a consumer in its group, and its commits."""
