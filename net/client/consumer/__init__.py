"""The consumer: fetching, polling, process_once."""
