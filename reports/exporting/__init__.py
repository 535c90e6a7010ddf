"""Export a point of a front as a model folder."""
