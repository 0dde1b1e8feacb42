"""What cannot be merged."""


class MergeError(ValueError):
    """There is nothing to merge, or a rank's files do not say which parts they hold; the message names the way out."""
