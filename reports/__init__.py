"""From a run to one HTML page, and from a point of its front to a model folder. Runs no trial, and
writes only to the run folder or where the user says."""
