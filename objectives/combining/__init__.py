"""Cascades: finished models that answer together. Imports no torch."""
