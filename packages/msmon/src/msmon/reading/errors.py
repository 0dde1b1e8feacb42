"""What can make a run unreadable."""


class UnusableRun(ValueError):
    """The directory (or a file given with it) cannot be read as a run; the message says what to do."""


def need_pyarrow() -> None:
    """Raise an ImportError that names the extra where pyarrow is missing."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "reading a run needs pyarrow, which reads the CSV and Parquet files: pip install 'msmon[report]'"
        ) from error
