"""What several finished models answer together: cascades and ensembles. Imports no torch."""
