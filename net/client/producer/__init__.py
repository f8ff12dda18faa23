"""The producer: batches, numbers, retries."""
