"""The entry point that Spark discovers: it imports every top-level package named `pyspark_*` and uses its `DefaultSource`.

An error in one such package hides the sources of all of them, so without PySpark this package merely has no source.
"""

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> object:
    if name != "DefaultSource":
        raise AttributeError(f"module 'pyspark_barnabas' has no attribute {name!r}")
    try:
        from barnabas.spark_connector.source import BarnabasDataSource
    except ImportError as error:
        # For hasattr() this means that the package has no source, which is correct.
        raise AttributeError(f"{error}: pip install 'barnabas[spark]'") from error
    return BarnabasDataSource
