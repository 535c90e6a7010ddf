"""optuna-dashboard on runs: what it may see, and may not do."""
