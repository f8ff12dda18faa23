"""`barnabas pipeline` without Spark: the file of a pipeline as values with the line of each error, its state folder, and the
process that starts its Spark driver again. The driver is in `spark_connector/pipeline`, and is a process of its own."""
