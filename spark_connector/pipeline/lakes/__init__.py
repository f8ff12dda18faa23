"""Tables in folders of files: Delta and Iceberg. Tasks write Parquet, the driver commits a micro-batch at once."""
