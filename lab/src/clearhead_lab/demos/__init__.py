"""Pages that demonstrate a theory: drag points and see what it says."""
