"""What several finished models answer together: cascades. Imports no torch."""
