"""A launch and its workers."""
