"""The outer loop: the Study, its launch, workers and storages, the command line. Knows optuna."""
