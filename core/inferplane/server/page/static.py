"""The page and the headers that let it run its own script and style, call its server, and nothing else.

Imports nothing but the standard library: the page is served before a web framework is there.
"""

from __future__ import annotations

import base64
import re
from hashlib import sha256
from importlib.resources import files

PAGE_PATH = "/"
_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


def read_page() -> str:
    """The file as it is in the package."""
    return files(__package__).joinpath("index.html").read_text(encoding="utf-8")


def page_headers(html: str) -> dict[str, str]:
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
