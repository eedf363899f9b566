"""What the papers measured, as experiments that can be run again."""
