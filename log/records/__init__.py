"""Many records at once: batches into columns and views, values into batches; compiled, with a twin in Python."""
