"""`barnabas connect`: connectors of PostgreSQL. Needs psycopg."""
