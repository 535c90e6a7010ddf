"""The error that a user can mend: bad data, a wrong checkpoint, a setting out of range."""


class UserError(ValueError):
    """What is wrong, where, and the remedy, in one line; the command line exits with 2."""
