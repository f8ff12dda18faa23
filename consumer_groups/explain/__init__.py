"""What a group waits for, who keeps it waiting, and when an operator is told."""
