"""Storages of Optuna studies, by URL."""
