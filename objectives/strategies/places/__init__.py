"""Strategies over places: who chooses where each place has a few choices, such as an operation."""
