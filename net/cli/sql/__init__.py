"""`barnabas sql`: topics as tables of DuckDB, and which of their records a filter can mean. Needs duckdb and pyarrow."""
