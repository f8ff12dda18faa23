"""What routes share: a call, its answer, its errors, who may call, the port to the broker."""
