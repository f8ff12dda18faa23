"""What Spark finds by itself: it imports every top-level package named `pyspark_*` and takes its `DefaultSource`.

An error in one such package hides the sources of all of them, so where PySpark itself is missing this one just has none.
"""

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> object:
    if name != "DefaultSource":
        raise AttributeError(f"module 'pyspark_barnabas' has no attribute {name!r}")
    try:
        from barnabas.spark_connector.source import BarnabasDataSource
    except ImportError as error:
        # hasattr() takes this for "no source here", which is the truth.
        raise AttributeError(f"{error}: pip install 'barnabas[spark]'") from error
    return BarnabasDataSource
