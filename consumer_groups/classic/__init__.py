"""Groups whose members assign among themselves: join and sync."""
