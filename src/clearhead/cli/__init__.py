"""The command line: options, progress, exit codes and printing."""
