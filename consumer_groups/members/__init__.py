"""Groups whose coordinator assigns (KIP-848): members, targets, reconciliation."""
