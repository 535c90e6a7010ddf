"""A run on disk: its files, records and results."""
