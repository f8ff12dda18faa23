"""What a group is waiting for, which members delay it, and when an operator is alerted."""
