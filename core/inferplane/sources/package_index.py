"""Which wheels of a package there are: simple indexes (JSON and HTML), folders and link pages. Downloads no wheel."""

from __future__ import annotations

import re
import ssl
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin, urlsplit
from urllib.request import url2pathname

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from inferplane.errors import InferplaneError
from inferplane.log import get_logger
from inferplane.sources.download import check_status, no_network, redacted

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from inferplane.sources.pip_config import PipConfig

log = get_logger(__name__)

_JSON = "application/vnd.pypi.simple.v1+json"
_ACCEPT = f"{_JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01"
_SHA256 = re.compile(r"(?:^|&)sha256=([0-9a-fA-F]{64})(?:&|$)")


class Wheel(NamedTuple):
    """A wheel that an index offers."""

    filename: str
    version: Version
    url: str
    """http(s):// or file://."""
    sha256: str | None
    yanked: bool


class Links(NamedTuple):
    """What one place has of a package."""

    wheels: list[Wheel]
    num_others: int
    """Files that are no wheels."""


def open_client(config: PipConfig) -> httpx.Client:
    """A client with pip's certificate, proxy, timeout and trusted-host settings; the environment's proxies hold too."""
    import httpx

    context = ssl.create_default_context(cafile=config.cert) if config.cert else True
    if config.client_cert and isinstance(context, ssl.SSLContext):
        context.load_cert_chain(config.client_cert)
    trusted = {
        f"https://{host}": httpx.HTTPTransport(verify=False, proxy=config.proxy) for host in config.trusted_hosts
    }
    return httpx.Client(
        verify=context, proxy=config.proxy, timeout=config.timeout, mounts=trusted, follow_redirects=True
    )


def find_wheels(client: httpx.Client, config: PipConfig, name: str) -> list[Wheel]:
    """All wheels of the package, find-links first, then the indexes in their order.

    Raises InferplaneError with code "source.no_network" or "source.http" when an index failed and no other has the
    package, "source.package_not_found" when none has it, "source.no_wheel" when there are only other files.
    """
    found: list[Wheel] = []
    num_others = 0
    failure: InferplaneError | None = None
    for url, is_index in [(link, False) for link in config.find_links] + [(index, True) for index in config.indexes]:
        try:
            links = _links_of_index(client, url, name) if is_index else _links_of_place(client, url, name)
        except InferplaneError as error:
            failure = failure or error
            log.warning("package index %s: %s", redacted(url), error.message)
            continue
        found += links.wheels
        num_others += links.num_others
    if found:
        return found
    if failure is not None:
        raise failure
    places = ", ".join(redacted(url) for url in (*config.find_links, *config.indexes)) or "none (no-index is set)"
    if num_others:
        raise InferplaneError(
            f"package {name} has no wheel, only source archives, in {places}",
            code="source.no_wheel",
            remedy="only wheels are read, since building a source archive would run its code",
        )
    raise InferplaneError(
        f"package {name} is not in {places}",
        code="source.package_not_found",
        remedy="check the name, and the index-url and find-links of pip's configuration (`pip config list`)",
    )


def local_path(url: str) -> Path | None:
    """The path of a file:// URL or of a plain path; None for other URLs."""
    if url.startswith("file:"):
        return Path(url2pathname(unquote(urlsplit(url).path)))
    return None if "://" in url else Path(url).expanduser()


def _links_of_index(client: httpx.Client, index: str, name: str) -> Links:
    page = f"{index.rstrip('/')}/{canonicalize_name(name)}/"
    folder = local_path(page)
    if folder is None:
        return _links_of_url(client, page, name)
    html = folder / "index.html"
    if not html.is_file():
        return Links([], 0)
    return _collect(_html_links(html.read_text(encoding="utf-8"), folder.absolute().as_uri() + "/"), name)


def _links_of_place(client: httpx.Client, link: str, name: str) -> Links:
    path = local_path(link)
    if path is None:
        return _links_of_url(client, link, name)
    if path.is_dir():
        return _collect(((file.name, file.absolute().as_uri(), None, False) for file in sorted(path.iterdir())), name)
    if path.suffix == ".whl" and path.is_file():
        return _collect([(path.name, path.absolute().as_uri(), None, False)], name)
    if path.is_file():
        return _collect(_html_links(path.read_text(encoding="utf-8"), path.absolute().as_uri()), name)
    return Links([], 0)


def _links_of_url(client: httpx.Client, url: str, name: str) -> Links:
    import httpx

    try:
        response = client.get(url, headers={"Accept": _ACCEPT})
    except httpx.TransportError as error:
        raise no_network(url, error) from error
    if response.status_code == 404:
        return Links([], 0)
    check_status(response, url)
    base = str(response.url)
    if "json" in response.headers.get("Content-Type", ""):
        links = _json_links(response.json(), base)
    else:
        links = list(_html_links(response.text, base))
    # A page from the network must not point into this machine's files.
    return _collect((link for link in links if link[1].startswith(("https://", "http://"))), name)


_Link = tuple[str, str, "str | None", bool]


def _json_links(page: Any, base: str) -> list[_Link]:
    files = page.get("files", []) if isinstance(page, dict) else []
    return [
        (file["filename"], urljoin(base, file["url"]), file.get("hashes", {}).get("sha256"), bool(file.get("yanked")))
        for file in files
        if isinstance(file, dict) and "filename" in file and "url" in file
    ]


def _html_links(page: str, base: str) -> Iterator[_Link]:
    parser = _Anchors()
    parser.feed(page)
    for attributes in parser.anchors:
        url, fragment = urldefrag(urljoin(parser.base or base, attributes.get("href") or ""))
        digest = _SHA256.search(fragment)
        filename = unquote(urlsplit(url).path).rpartition("/")[2]
        yield filename, url, digest.group(1).lower() if digest else None, "data-yanked" in attributes


def _collect(links: Iterator[_Link] | list[_Link] | Any, name: str) -> Links:
    wanted = canonicalize_name(name)
    wheels: list[Wheel] = []
    num_others = 0
    for filename, url, sha256, yanked in links:
        if not filename.endswith(".whl"):
            stem = re.sub(r"\.(tar\.gz|tar\.bz2|zip|egg|tgz)$", "", filename)
            num_others += stem != filename and canonicalize_name(stem.rpartition("-")[0]) == wanted
            continue
        try:
            project, version, _, _ = parse_wheel_filename(filename)
        except InvalidWheelFilename:
            continue
        if project == wanted:
            wheels.append(Wheel(filename, version, url, sha256, yanked))
    return Links(wheels, num_others)


class _Anchors(HTMLParser):
    """Collects the attributes of links, and the base address."""

    def __init__(self) -> None:
        super().__init__()
        self.base: str | None = None
        self.anchors: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "a" and attributes.get("href"):
            self.anchors.append(attributes)
        elif tag == "base" and self.base is None:
            self.base = attributes.get("href")
