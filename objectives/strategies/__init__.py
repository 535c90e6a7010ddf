"""Who chooses: rankings of units, and gradients that move architecture variables."""
