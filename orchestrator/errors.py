"""The error that a user can mend in a run folder, a study file or on the command line."""


class RunError(Exception):
    """What is wrong, where, and the remedy, in one line; the command line exits with 2.

    No ValueError: that is what Optuna raises for a trial that has ended already.
    """
