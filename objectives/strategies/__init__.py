"""Who chooses: rankings of units, gradients that move architecture variables, and strategies over
places."""
