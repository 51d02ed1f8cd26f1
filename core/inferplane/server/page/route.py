"""Serves the page at `/` with headers that let it run its own script and style, call this server, and nothing else.

Knows nothing of what the page shows: it is one static file that asks the public routes, as any client does.
"""

from __future__ import annotations

import base64
import re
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING

from fastapi import Response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import FastAPI

    from inferplane.server.description import Description

PAGE_PATH = "/"
_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


def read_page() -> str:
    """The file as it is in the package."""
    return files(__package__).joinpath("index.html").read_text(encoding="utf-8")


def page_headers(html: str) -> Mapping[str, str]:
    """The policy names the page's own script and style by their digests, so that nothing else in it can ever run."""
    digests: dict[str, list[str]] = {"script": [], "style": []}
    for kind, text in _INLINE.findall(html):
        digest = base64.b64encode(sha256(text.encode()).digest()).decode()
        digests[kind].append(f"'sha256-{digest}'")
    policy = (
        "default-src 'none'",
        f"script-src {' '.join(digests['script'])}",
        f"style-src {' '.join(digests['style'])}",
        "connect-src 'self'",
        "img-src data:",  # its own icon, which keeps browsers from asking for /favicon.ico
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # No text can become markup, whatever a model writes: the browser refuses innerHTML and its kin.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
    return {
        "Content-Security-Policy": "; ".join(policy),
        "X-Frame-Options": "DENY",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-cache",
    }


def add_page(app: FastAPI, description: Description) -> None:
    """GET and HEAD; the file is read once."""
    html = read_page()
    headers = dict(page_headers(html))
    described = description.route("The built-in page", answer=str, media_type="text/html", errors=(500,))

    @app.head(PAGE_PATH, operation_id="page_head", include_in_schema=False)
    @app.get(PAGE_PATH, operation_id="page", **described)
    async def page() -> Response:
        return Response(html, headers=headers, media_type="text/html")
