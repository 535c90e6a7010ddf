"""What search methods share: their bases, stages, how alpha learns, worths of units."""
