"""The command line: parse, call a corridor, print."""
