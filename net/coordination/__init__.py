"""The shells of the coordinators: groups, share groups and transactions on this broker."""
