"""Studies, one short file each, ending in `study = Study(...)`, to copy and edit."""
