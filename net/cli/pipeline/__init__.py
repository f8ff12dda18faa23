"""`barnabas pipeline`: pipelines on Spark that a file describes. Running and planning need pyspark and Java."""
