"""The SDK: producer, consumer and admin clients."""
