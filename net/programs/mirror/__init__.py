"""`barnabas mirror`: topics of another cluster, Kafka's or ours, into this one, each record once, with the groups' offsets."""
