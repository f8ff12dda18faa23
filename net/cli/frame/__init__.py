"""What commands share: arguments, output, exit codes, patience."""
