"""Search methods, one a file. The folder is the registry: a file here is a method."""
