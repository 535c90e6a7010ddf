"""Architecture variables that follow gradients: masks, how they move, where they start."""
