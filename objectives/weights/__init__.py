"""Whose weights a candidate has: its own, or shared."""
