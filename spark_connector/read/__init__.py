"""Batches and streams that Spark reads."""
