"""A trial: task, student, masks, cost, stages, the cut model. Imports no optuna."""
