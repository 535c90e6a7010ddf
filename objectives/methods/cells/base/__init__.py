"""Shared by the searches for cells: base classes, super-nets, shared weights."""
