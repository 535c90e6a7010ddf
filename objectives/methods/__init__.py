"""One search method a file, with its alpha; the folder is the registry."""
