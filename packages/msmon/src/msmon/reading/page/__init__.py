"""One self-contained HTML page: data, styles, scripts and the plotting library in a single file."""

from .document import PAGE_LIMIT, write_page
from .series import Panel, TypeSeries

__all__ = ["PAGE_LIMIT", "Panel", "TypeSeries", "write_page"]
