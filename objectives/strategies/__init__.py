"""Who chooses: rankings of units, gradients on alpha, and strategies over places."""
