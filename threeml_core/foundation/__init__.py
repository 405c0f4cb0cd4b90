"""What everything stands on: errors, files, log lines, processes."""
