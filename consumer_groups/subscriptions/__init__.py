"""The topics that members subscribe to, by name or by pattern."""
