"""Handlers of share groups, in both protocols."""
