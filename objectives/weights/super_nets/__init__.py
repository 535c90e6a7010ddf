"""Networks that hold the weights of all cells of a space."""
