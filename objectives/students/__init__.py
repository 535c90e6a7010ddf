"""Student models: a package for each model family, behind `family`."""
