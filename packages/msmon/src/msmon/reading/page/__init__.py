"""One self-contained HTML page: data, styles, scripts and the plotting library in a single file."""

from msmon.reading.page.document import PAGE_LIMIT, Page, Written, write_page
from msmon.reading.page.series import Panel, TypeSeries, link

__all__ = ["PAGE_LIMIT", "Page", "Panel", "TypeSeries", "Written", "link", "write_page"]
