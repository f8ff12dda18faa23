"""What a broker fetches from the leaders of the partitions that it follows, and how fast it may copy."""
