"""Groups whose elected leader member computes the assignment: join and sync."""
