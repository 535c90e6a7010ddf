"""Measures: costs, the budget, scores and their confidence."""
