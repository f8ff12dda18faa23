"""The entry point for Spark's search of the format "postgres-changes", as `pyspark_barnabas` is for "barnabas".

Spark takes one source from each package, so this is a package of its own.
"""

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> object:
    if name != "DefaultSource":
        raise AttributeError(f"module 'pyspark_barnabas_postgres' has no attribute {name!r}")
    try:
        from barnabas.spark_connector.postgres.change_source import PostgresChangesDataSource
    except ImportError as error:
        # For hasattr() this means that the package has no source, which is correct.
        raise AttributeError(f"{error}: pip install 'barnabas[spark,postgres]'") from error
    return PostgresChangesDataSource
