"""Whose weights a candidate has: its own, shared with other sizes, or inherited."""
