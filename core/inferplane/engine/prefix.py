"""Which pages already hold a prompt's beginning: a hash chain over blocks of tokens, found again per KV group."""

from __future__ import annotations

import math
from array import array
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferplane.engine.pages import PagePool
    from inferplane.engine.request import RequestState
    from inferplane_api.kv import KVGeometry

_VERSION = b"inferplane prefix 1"


def seed_digest(cache_salt: str, extra_keys: tuple[bytes, ...] = ()) -> bytes:
    """The parent of a chain's first block: prompts share pages only when salt and extra keys are equal.

    Each key is preceded by its length, so that no two lists of keys read alike.
    """
    digest = sha256(_VERSION)
    for key in (cache_salt.encode(), *extra_keys):
        digest.update(len(key).to_bytes(8, "little"))
        digest.update(key)
    return digest.digest()


def extend_chain(hashes: list[bytes], seed: bytes, tokens: list[int], block_size: int, num_blocks: int) -> None:
    """Append the chain hashes of blocks len(hashes) … num_blocks - 1 (sha256 of parent digest and token ids)."""
    done = len(hashes)
    if done >= num_blocks:
        return
    parent = hashes[-1] if hashes else seed
    data = array("Q", tokens[done * block_size : num_blocks * block_size]).tobytes()
    size = block_size * 8
    for offset in range(0, len(data), size):
        parent = sha256(parent + data[offset : offset + size]).digest()
        hashes.append(parent)


class Hit:
    """The pages that hold the first `length` tokens of a request, as far as a query behind them sees them."""

    __slots__ = ("first", "length", "pages")

    def __init__(self, length: int, first: list[int], pages: list[list[int]]) -> None:
        self.length = length
        self.first = first
        """Per group, index of the first page of the table that is needed."""
        self.pages = pages
        """Per group, the pages from there to length."""


class PrefixIndex:
    """Publishes complete pages under the chain hash at their end, and finds the longest prefix valid in every group."""

    def __init__(self, geometry: KVGeometry, pool: PagePool) -> None:
        self._pool = pool
        self._block_size = geometry.block_size
        self._groups = tuple(geometry.groups)
        self._suffixes = [group.index.to_bytes(2, "little") for group in geometry.groups]
        self._stride = math.lcm(*(group.tokens_per_page for group in geometry.groups))

    def find(self, request: RequestState, limit: int) -> Hit:
        """The longest hit of at most `limit` tokens.

        A full group needs every page, a sliding group those with the last window - 1 tokens (the query behind the hit
        sees itself and these).
        """
        length = limit // self._stride * self._stride
        self._extend(request, length)
        for index, group in enumerate(self._groups):
            if group.window is None:
                length = self._covered(request.hashes, index, length)
        length = self._slide(request.hashes, length)
        first, pages = [], []
        for index, group in enumerate(self._groups):
            begin = self._begin(index, length)
            first.append(begin)
            found = (self._page(request.hashes, index, i) for i in range(begin, length // group.tokens_per_page))
            pages.append([page for page in found if page is not None])
        return Hit(length, first, pages)

    def has_more(self, request: RequestState, length: int, limit: int) -> bool:
        """True when a hit of `length` tokens, found before, would be longer now; costs a look-up a group."""
        end = length + self._stride
        if end > limit:
            return False
        self._extend(request, end)
        return all(
            self._page(request.hashes, index, i) is not None
            for index, group in enumerate(self._groups)
            for i in range(length // group.tokens_per_page, end // group.tokens_per_page)
        )

    def publish(self, request: RequestState, end: int) -> None:
        """Make the request's pages that lie below token `end` findable; their contents are planned and known."""
        begin = request.published
        if end // self._block_size <= begin // self._block_size:
            return
        self._extend(request, end)
        hashes = request.hashes
        publish = self._pool.publish
        for index, group in enumerate(self._groups):
            size = group.tokens_per_page
            blocks = size // self._block_size
            table = request.pages[index]
            for i in range(max(begin // size, request.first[index]), end // size):
                publish(table[i], hashes[(i + 1) * blocks - 1] + self._suffixes[index])
        request.published = end

    def forget(self, request: RequestState) -> None:
        """Drop whatever this request published or hit: its contents cannot be trusted."""
        for digest in request.hashes:
            for suffix in self._suffixes:
                self._pool.forget(digest + suffix)

    def _extend(self, request: RequestState, end: int) -> None:
        num_blocks = end // self._block_size
        if len(request.hashes) < num_blocks:
            seed = b"" if request.hashes else seed_digest(request.request.cache_salt)
            extend_chain(request.hashes, seed, request.tokens, self._block_size, num_blocks)

    def _page(self, hashes: list[bytes], index: int, i: int) -> int | None:
        blocks = self._groups[index].tokens_per_page // self._block_size
        return self._pool.find(hashes[(i + 1) * blocks - 1] + self._suffixes[index])

    def _begin(self, index: int, length: int) -> int:
        group = self._groups[index]
        if group.window is None:
            return 0
        return max(0, length - (group.window - 1)) // group.tokens_per_page

    def _covered(self, hashes: list[bytes], index: int, length: int) -> int:
        size = self._groups[index].tokens_per_page
        for i in range(length // size):
            if self._page(hashes, index, i) is None:
                return i * size // self._stride * self._stride
        return length

    def _slide(self, hashes: list[bytes], length: int) -> int:
        """The longest hit of at most `length` that every sliding group has the window of."""
        sliding = [i for i, group in enumerate(self._groups) if group.window is not None]
        while length:
            missing = [m for index in sliding if (m := self._missing(hashes, index, length)) is not None]
            if not missing:
                break
            # A shorter hit still needs the missing page until it ends before it.
            length = min(missing) // self._stride * self._stride
        return length

    def _missing(self, hashes: list[bytes], index: int, length: int) -> int | None:
        """First token of the last page that is needed and not there."""
        size = self._groups[index].tokens_per_page
        for i in range(length // size - 1, self._begin(index, length) - 1, -1):
            if self._page(hashes, index, i) is None:
                return i * size
        return None
