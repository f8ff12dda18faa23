"""Share groups (KIP-932): a leader's record of one partition, and the coordinator of the groups. Pure."""
