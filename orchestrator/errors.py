"""Error that a user can mend in a run folder, a study file or on the command line."""

from objectives.errors import MaskfrontError


class RunError(MaskfrontError):
    """Fault in a run folder, a storage, a study file or a command. No ValueError: Optuna raises
    that for a trial that has ended already."""
