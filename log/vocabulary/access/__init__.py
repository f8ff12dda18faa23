"""Words about users: what a cluster keeps of their passwords, and what they may do and use."""
