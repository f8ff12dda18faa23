"""The PySpark data source of SQL tables that a pipeline reads: in batches, as lookup tables, and along a column that grows."""
