"""Share groups (KIP-932): a consumer of queues, its membership, and its sessions with the leaders of partitions."""
