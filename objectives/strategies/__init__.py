"""Strategies over places: each place has a few choices, such as the operation of a node."""
