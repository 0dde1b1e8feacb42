"""What can make a run unreadable."""


class UnusableRun(ValueError):
    """The directory (or a file given with it) cannot be read as a run; the message says what to do."""
