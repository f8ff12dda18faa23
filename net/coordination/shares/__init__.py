"""The shell of share groups on the leaders of partitions: sessions, loaded partitions, their stored states, and waiting reads."""
