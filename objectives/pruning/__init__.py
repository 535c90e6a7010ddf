"""Cut a BERT to a budget: base classes, scores of units, the stages, reconstruction."""
