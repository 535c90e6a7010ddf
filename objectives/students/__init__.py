"""What a student can look like: one room a family of models, behind the protocol of `family`."""
