"""Elastic search: one training at all sizes, shared by the trials of a run."""
