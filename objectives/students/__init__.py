"""What a student can look like: a package for each model family, behind `family`."""
