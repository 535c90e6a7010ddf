"""One short file a study, ending in `study = Study(...)`. What a user copies and edits."""
