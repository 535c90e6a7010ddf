"""Labelled text: four disjoint roles, metrics, tokens, augmentation."""
