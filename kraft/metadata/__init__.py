"""The metadata of a cluster as values: records, the image, its changes, and the requests of brokers to the controller."""
