"""A run on disk, for those who write it and those who read it."""
