"""One self-contained HTML page: data, styles, scripts and the plotting library in a single file."""

from msmon.reading.page.document import PAGE_LIMIT, Page, Written, write_page
from msmon.reading.page.series import Panel, TypeSeries

__all__ = ["PAGE_LIMIT", "Page", "Panel", "TypeSeries", "Written", "write_page"]
