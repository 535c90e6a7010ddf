"""Search methods, each in a file or a folder of its own; the folder is the registry.

What differs from the papers: docs/systems.md."""
