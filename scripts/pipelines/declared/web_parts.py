"""The Python step of page_loads.toml."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

PART = r"\.(css|js|png|jpe?g|gif|ico|svg|woff|ttf|eot)$"


def with_parts(requests: DataFrame) -> DataFrame:
    """Requests without their query strings; `is_part` of a page, and `page`: the path that the browser came from."""
    path = F.split_part("path", F.lit("?"), F.lit(1))
    page = F.regexp_extract("referer", r"^https?://[^/]+(/[^?#]*)", 1)
    return requests.select(
        "client", "time", "bytes", path.alias("path"), path.rlike(PART).alias("is_part"), page.alias("page")
    )
