"""optuna-dashboard for runs: what it shows, and what it must not do."""
