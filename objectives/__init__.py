"""What one trial is: task, student, masks, cost, stages, the cut model. Never knows optuna."""
