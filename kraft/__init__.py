"""What the cluster agrees on: the Raft quorum, the controller and the metadata image."""
