"""Searches for the widths of the layers, trained together with the student."""
