"""The route of the page. Knows nothing of what it shows: one static file that asks the public routes, as any client
does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Response

from inferplane.server.page.static import PAGE_PATH, page_headers, read_page

if TYPE_CHECKING:
    from fastapi import FastAPI

    from inferplane.server.description import Description


def add_page(app: FastAPI, description: Description) -> None:
    """GET and HEAD; the file is read once."""
    html = read_page()
    headers = page_headers(html)
    described = description.route("The built-in page", answer=str, media_type="text/html", errors=(500,))

    @app.head(PAGE_PATH, operation_id="page_head", include_in_schema=False)
    @app.get(PAGE_PATH, operation_id="page", **described)
    async def page() -> Response:
        return Response(html, headers=headers, media_type="text/html")
