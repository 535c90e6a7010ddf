"""Figures of the page, a section a file."""
