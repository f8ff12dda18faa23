"""Groups whose coordinator computes the assignment (KIP-848): members, targets, reconciliation."""
