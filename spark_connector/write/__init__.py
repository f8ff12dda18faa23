"""Batches and streams that Spark writes."""
