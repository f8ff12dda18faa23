"""The commands about who may do what: users, permissions, quotas, certificates."""
