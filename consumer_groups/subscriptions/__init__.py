"""The topics that members want, by name or by pattern."""
