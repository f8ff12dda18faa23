"""One segment of a log with its indexes: appended, read, checked and closed."""
