"""Baselines: rankings that cost nothing, and random draws."""
