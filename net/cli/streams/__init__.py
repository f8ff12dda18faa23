"""The commands that move records: produce, consume, export, import, sql, collect."""
