"""The metadata of a cluster as values: records, the image, its changes, and what brokers ask of the controller."""
