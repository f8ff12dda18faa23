"""What an active controller knows without writing it: sessions of brokers, the quota of changes, the ends of logs."""
