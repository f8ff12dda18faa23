"""The PySpark data source "postgres-changes": rows of PostgreSQL in batches, and their changes as a stream."""
