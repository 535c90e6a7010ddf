"""The error that a user can mend in a run folder, a study file or on the command line."""

from objectives.errors import MaskfrontError


class RunError(MaskfrontError):
    """It is a run folder, a storage, a study file or the command line. No ValueError: that is what
    Optuna raises for a trial that has ended already."""
