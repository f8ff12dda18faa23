"""The connectors of PostgreSQL: every change of tables into topics, and topics back into tables, each exactly once."""
