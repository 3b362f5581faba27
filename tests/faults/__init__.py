"""Attacks on what Clearhead reads, writes and computes: `make faults` runs them."""
