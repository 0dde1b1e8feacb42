"""What the commands that read a run have in common."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table
from rich.text import Text

from msmon_alert import printable


def console() -> Console:
    """For results. Piped into a file or a pager there is no terminal whose width could be asked."""
    return Console(highlight=False) if Console().is_terminal else Console(highlight=False, width=140)


@contextmanager
def status_line(what: str) -> Iterator[Callable[[str], None]]:
    """A line on the terminal that says what is being read, and disappears; nothing where there is no terminal."""
    errors = Console(stderr=True, highlight=False)
    if not errors.is_terminal:
        yield lambda text: None
        return
    with errors.status(what) as status:
        yield lambda text: status.update(f"{what}: {text}")


def text(value: object, style: str = "") -> Text:
    """Text as it is: no markup, and nothing that a terminal would obey, whatever a module is called."""
    return Text(printable(str(value)), style=style, overflow="fold")


def table(title: str, *columns: str, right: tuple[str, ...] = ()) -> Table:
    """An empty table; `right` are the columns of numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, header_style="dim", pad_edge=False)
    for column in columns:
        number = column in right
        made.add_column(column, justify="right" if number else "left", no_wrap=number, overflow="fold")
    return made


def number(value: float) -> str:
    """Six significant digits.

    >>> number(0.25), number(float("nan"))
    ('0.25', 'nan')
    """
    return f"{value:.6g}"
