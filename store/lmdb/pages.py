"""Walks the pages of an LMDB file (headers, trees, free lists) by its format alone, and says which are damaged.

page      number u64 | zero u16 | flags u16 | where the list of nodes ends, and where nodes begin, u16 each | the list
node      length of the value u32, or in a branch the page below u48 | flags u16, in a leaf | bytes of the key u16 | key
overflow  number u64 | zero u16 | flags u16 | how many pages u32 | the value
"""

import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

Data = memoryview

_PAGE = struct.Struct("<QHHHH")
_OVERFLOW = struct.Struct("<QHHI")
_NODE = struct.Struct("<HHHH")
_META = struct.Struct("<IIQQ")  # magic, version, two of the map
_TREE = struct.Struct("<IHHQQQQQ")
_LAST = struct.Struct("<QQ")  # page, transaction
_NUMBER = struct.Struct("<Q")
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_METAS = 2  # pages
_BRANCH, _LEAF, _VALUE, _IS_META, _DIRTY = 1, 2, 4, 8, 16  # flags of a page
_APART, _NAMED = 1, 2  # flags of a leaf's node: the value has pages of its own, or is a database
_NO_ROOT = 2**64 - 1


class DamagedPages(ValueError):
    """The file is not as LMDB writes it."""


class _Tree(NamedTuple):
    page_bytes: int  # of the first tree of a file
    flags: int
    depth: int
    branches: int
    leaves: int
    overflows: int
    entries: int
    root: int


class Entry(NamedTuple):
    """A key with its value, as views of the file."""

    key: bytes
    value: Data
    flags: int


class Pages:
    """An LMDB file's pages. Each is visited once: a second visit, or a page outside the file, is damage."""

    def __init__(self, data: Data) -> None:
        """Raises NotImplementedError for a file of another version of LMDB."""
        self._data = data
        self._bytes = _TREE.unpack_from(self._part(_PAGE.size + _META.size, _TREE.size))[0]
        if self._bytes < 256 or self._bytes & (self._bytes - 1):
            raise DamagedPages(f"pages of {self._bytes} bytes")
        metas = [self._meta(number) for number in range(_METAS)]
        self._free, self._main, self._last, _ = max(metas, key=lambda meta: meta[3])
        if (self._last + 1) * self._bytes > len(data):
            raise DamagedPages(f"page {self._last} is behind the end of the file")
        self._seen = bytearray(self._last + 1)

    def entries(self) -> Iterator[tuple[bytes, Entry]]:
        """Yields each database's name with its entries, in order. Raises DamagedPages, perhaps only at the end."""
        for freed in self._below(self._free):
            for page in _freed(freed):
                self._visit(page, 1)
        for name in [*self._below(self._main)]:
            told = name.flags, len(name.value) == _TREE.size  # the second: whether it may be the root of a tree
            if told == (0, False):
                continue  # a note beside the databases
            if told != (_NAMED, True):
                raise DamagedPages(f"{name.key!r} is no database")
            for entry in self._below(_Tree(*_TREE.unpack(name.value))):
                yield name.key, entry

    def _meta(self, number: int) -> tuple[_Tree, _Tree, int, int]:
        start = number * self._bytes
        flags = _PAGE.unpack(self._part(start, _PAGE.size))[2]
        start += _PAGE.size
        magic, version, *_ = _META.unpack(self._part(start, _META.size))
        if magic != _MAGIC or not flags & _IS_META:
            raise DamagedPages(f"page {number} has no mark of LMDB")
        if version != _VERSION:
            raise NotImplementedError(f"LMDB's version {version}")
        start += _META.size
        trees = [_Tree(*_TREE.unpack(self._part(start + place * _TREE.size, _TREE.size))) for place in range(2)]
        last, transaction = _LAST.unpack(self._part(start + 2 * _TREE.size, _LAST.size))
        return trees[0], trees[1], last, transaction

    def _part(self, start: int, count: int) -> Data:
        if start + count > len(self._data):
            raise DamagedPages("the file ends too soon")
        return self._data[start : start + count]

    def _visit(self, first: int, count: int) -> None:
        if not _METAS <= first <= self._last + 1 - count or any(self._seen[first : first + count]):
            raise DamagedPages(f"{count} pages from {first} on are no longer free, or not in the file")
        self._seen[first : first + count] = bytes([1]) * count

    def _below(self, tree: _Tree) -> Iterator[Entry]:
        found = 0
        for entry in () if tree.root == _NO_ROOT else self._walk(tree.root, tree.depth):
            found += 1
            yield entry
        if found != tree.entries:
            raise DamagedPages(f"{found} entries where {tree.entries} are told")

    def _walk(self, number: int, depth: int) -> Iterator[Entry]:
        """Yields the entries below a page, which is the root of `depth` levels."""
        self._visit(number, 1)
        page = self._part(number * self._bytes, self._bytes)
        told, _, flags, lower, upper = _PAGE.unpack_from(page)
        if told != number or flags & ~_DIRTY != (_LEAF if depth == 1 else _BRANCH):
            raise DamagedPages(f"page {number} is another")
        if not _PAGE.size < lower <= upper <= self._bytes or lower % 2:
            raise DamagedPages(f"page {number} has no nodes")
        for place in range(_PAGE.size, lower, 2):
            [start] = struct.unpack_from("<H", page, place)
            if not upper <= start <= self._bytes - _NODE.size:
                raise DamagedPages(f"a node of page {number} is not in it")
            yield from self._leaf(page, start) if depth == 1 else self._branch(page, start, depth=depth - 1)

    def _branch(self, page: Data, start: int, *, depth: int) -> Iterator[Entry]:
        low, middle, high, _ = _NODE.unpack_from(page, start)
        return self._walk(low | middle << 16 | high << 32, depth)

    def _leaf(self, page: Data, start: int) -> Iterator[Entry]:
        low, high, flags, key_bytes = _NODE.unpack_from(page, start)
        length, place = low | high << 16, start + _NODE.size + key_bytes
        if place + (_NUMBER.size if flags & _APART else length) > len(page):
            raise DamagedPages("a node ends behind its page")
        key = bytes(page[start + _NODE.size : place])
        value = self._apart(page, place, length=length) if flags & _APART else page[place : place + length]
        yield Entry(key, value, flags)

    def _apart(self, page: Data, place: int, *, length: int) -> Data:
        [first] = _NUMBER.unpack_from(page, place)
        count = -(-(length + _OVERFLOW.size) // self._bytes)
        self._visit(first, count)
        told, _, flags, pages = _OVERFLOW.unpack(self._part(first * self._bytes, _OVERFLOW.size))
        if (told, flags & ~_DIRTY, pages) != (first, _VALUE, count):
            raise DamagedPages(f"page {first} is another")
        return self._part(first * self._bytes + _OVERFLOW.size, length)


def _freed(entry: Entry) -> list[int]:
    """The page numbers that a transaction has freed."""
    numbers = [number for (number,) in _NUMBER.iter_unpack(entry.value)] if len(entry.value) % 8 == 0 else []
    if len(entry.key) != _NUMBER.size or not numbers or len(numbers) <= numbers[0]:
        raise DamagedPages("a list of free pages ends too soon")
    pages = numbers[1 : numbers[0] + 1]
    if any(one <= other for one, other in pairwise(pages)):
        raise DamagedPages("a list of free pages is not in order")
    return pages
