"""Programs that copy between a cluster and what is outside of it. They are clients."""
