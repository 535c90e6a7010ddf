"""Searches for cells, with their base classes and their super-net."""
