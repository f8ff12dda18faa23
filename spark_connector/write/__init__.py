"""The batch writer and the stream writer."""
