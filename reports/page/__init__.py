"""HTML page, and the front as a picture."""
