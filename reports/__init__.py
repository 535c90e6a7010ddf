"""From a run to one HTML page, and from a point of its front to a model folder. Makes no trial.
What it writes goes to the run's folder or where the user says, never here."""
