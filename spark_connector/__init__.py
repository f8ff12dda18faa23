"""The PySpark data source (streaming and batch reads and writes without a jar)."""
