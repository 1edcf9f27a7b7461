"""
The files and directories of the crash file system, with their synced and unsynced state.

A file is a list of immutable 4 KiB blocks. For every block that changed since the last sync, the old contents are kept
as well: a sync drops them, and a crash restores them. Copies share the blocks. Directories do the same with names:
`durable` has the names that survive a power loss, and the file system has the list of later changes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from random import Random

from quiver.errors import UsageError

__all__ = ["BLOCK_BYTES", "Chance", "Change", "CrashDirectory", "CrashInode", "CrashTree", "Edit", "Node"]

BLOCK_BYTES = 4096
"""The unit in which a disk persists: a block is old or new, never a mixture."""

_ZERO_BLOCK = bytes(BLOCK_BYTES)


class Chance:
    """
    Decides which unsynced state survives. Seed 0 keeps nothing, seed 1 everything, any other seed a random choice.

    The choice differs from step to step, so that a few seeds cover many torn states.
    """

    def __init__(self, seed: int, step: int) -> None:
        self._seed = seed
        self._random = Random(seed * 1_000_003 + step)  # noqa: S311
        # Some disks write back early and some late: seeds differ in the same way.
        self._likelihood = self._random.choice((0.1, 0.5, 0.9))

    def keeps(self) -> bool:
        """Return whether the next item survives."""
        if self._seed in {0, 1}:
            return self._seed == 1
        return self._random.random() < self._likelihood

    def between(self, low: int, high: int) -> int:
        """Return *high*, or for seeds above 1 sometimes a block boundary below: a long write persists in pieces."""
        if self._seed > 1 and high > low and not self.keeps():
            return min(high, max(low, self._random.randint(low, high) // BLOCK_BYTES * BLOCK_BYTES))
        return high


def _cut(block: bytes, size: int) -> bytes:
    if size >= BLOCK_BYTES:
        return block
    return block[: max(0, size)].ljust(BLOCK_BYTES, b"\0")


@dataclass(eq=False, slots=True)
class CrashInode:
    """One file. After `size` the last block holds zeros, and so do its old contents."""

    number: int
    mode: int
    modified_ns: int
    size: int = 0
    blocks: list[bytes] = field(default_factory=list)
    synced_mode: int = 0
    synced_size: int = 0
    size_min: int = 0
    """The smallest size since the last sync: the blocks after it were released meanwhile."""

    before: dict[int, bytes] = field(default_factory=dict)
    """Block index → its synced contents, for each block changed since the last sync."""

    lost: dict[int, bytes] = field(default_factory=dict)
    """The same for blocks whose sync failed: readers see the new contents, but the disk never got them."""

    mapped: bytearray | None = None
    """The memory of the writable mappings. Blocks in which it differs were stored to since the last `absorb`."""

    mappings: int = 0

    def map_write(self) -> bytearray:
        """Return the complete file as shared memory; every later access to the file absorbs its changes."""
        if self.mapped is None:
            self.mapped = bytearray(b"".join(self.blocks)[: self.size])
        self.mappings += 1
        return self.mapped

    def unmap(self) -> None:
        """Release one mapping. Stores through views that live longer have no effect."""
        self.absorb()
        self.mappings -= 1
        if not self.mappings:
            self.mapped = None

    def absorb(self) -> None:
        """Absorb stores through mappings, as unsynced writes."""
        if self.mapped is None:
            return
        for index in range(-(-len(self.mapped) // BLOCK_BYTES)):
            found = bytes(self.mapped[index * BLOCK_BYTES : (index + 1) * BLOCK_BYTES])
            old = self.blocks[index]
            if found != (old if len(found) == BLOCK_BYTES else old[: len(found)]):
                self._remember(index)
                self.blocks[index] = found + old[len(found) :]

    def touch(self, start: int, end: int) -> None:
        """Mark the blocks from *start* to *end* as written again, unchanged."""
        self.absorb()
        for index in range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES)):
            self._remember(index)

    def read(self, size: int, offset: int) -> bytes:
        """Return up to *size* bytes at *offset*."""
        self.absorb()
        end = min(self.size, offset + size)
        if offset >= end:
            return b""
        first = offset // BLOCK_BYTES
        joined = b"".join(self.blocks[first : -(-end // BLOCK_BYTES)])
        return joined[offset - first * BLOCK_BYTES : end - first * BLOCK_BYTES]

    def write(self, data: memoryview, offset: int) -> None:
        """Write *data* at *offset*, growing the file."""
        if not data:
            return
        self.absorb()
        self._grow(offset + len(data))
        index, within = divmod(offset, BLOCK_BYTES)
        position = 0
        while position < len(data):
            step = min(BLOCK_BYTES - within, len(data) - position)
            old = self.blocks[index]
            new = b"".join((old[:within], data[position : position + step], old[within + step :]))
            self._remember(index)
            self.blocks[index] = _ZERO_BLOCK if new == _ZERO_BLOCK else new
            position += step
            index += 1
            within = 0
        if self.mapped is not None:
            within_map = data[: max(0, len(self.mapped) - offset)]
            self.mapped[offset : offset + len(within_map)] = within_map

    def truncate(self, size: int) -> None:
        """Set the length; new bytes read as zeros."""
        self.absorb()
        if size >= self.size:
            self._grow(size)
            return
        if self.mapped is not None and size < len(self.mapped):
            raise UsageError(
                "the file is mapped: an access to the truncated part would kill the process; unmap it first"
            )
        count = -(-size // BLOCK_BYTES)
        for index in range(size // BLOCK_BYTES, len(self.blocks)):
            self._remember(index)
        del self.blocks[count:]
        if count:
            self.blocks[-1] = _cut(self.blocks[-1], size - (count - 1) * BLOCK_BYTES)
        self.size = size
        self.size_min = min(self.size_min, size)

    def _grow(self, size: int) -> None:
        if size > self.size:
            self.size = size
            self.blocks.extend([_ZERO_BLOCK] * (-(-size // BLOCK_BYTES) - len(self.blocks)))

    def _remember(self, index: int) -> None:
        old = self.lost.pop(index, None)
        self.before.setdefault(index, self.blocks[index] if old is None else old)

    def sync(self, *, metadata: bool) -> None:
        """Make contents and length durable; with *metadata* also the mode."""
        self.absorb()
        self.before.clear()
        self.synced_size = self.size_min = self.size
        if metadata:
            self.synced_mode = self.mode

    def lose_unsynced(self) -> None:
        """Fail a sync as kernels do: the changed blocks count as clean from now on, but are not on the disk."""
        self.absorb()
        self.lost.update(self.before)
        self.before.clear()

    def survivor(self, chance: Chance) -> CrashInode:
        """Return the file after a power loss, completely synced."""
        self.absorb()
        cut = self.size_min < self.synced_size
        kept_length = (cut or self.size != self.synced_size) and chance.keeps()
        size = chance.between(self.size_min, self.size) if kept_length else self.synced_size
        count = -(-size // BLOCK_BYTES)
        blocks = self.blocks[:count]
        blocks.extend([_ZERO_BLOCK] * (count - len(blocks)))
        for index, old in itertools.chain(self.before.items(), self.lost.items()):
            # If the truncation did not reach the disk, later writes after it went to blocks the disk does not know.
            unknown = cut and not kept_length and index >= self.size_min // BLOCK_BYTES
            new = chance.keeps() and not unknown and index not in self.lost
            if index < count and not new:
                # If it did, the old contents after it are lost.
                blocks[index] = _cut(old, self.size_min - index * BLOCK_BYTES) if cut and kept_length else old
        if count:
            blocks[-1] = _cut(blocks[-1], size - (count - 1) * BLOCK_BYTES)
        mode = self.mode if chance.keeps() else self.synced_mode
        return CrashInode(self.number, mode, self.modified_ns, size, blocks, mode, size, size)

    def copy(self) -> CrashInode:
        """Return a copy with the same unsynced state and without mappings; blocks are shared."""
        self.absorb()
        return CrashInode(
            self.number, self.mode, self.modified_ns, self.size, self.blocks.copy(), self.synced_mode,
            self.synced_size, self.size_min, self.before.copy(), self.lost.copy(),
        )  # fmt: skip


@dataclass(eq=False, slots=True)
class CrashDirectory:
    """One directory: the visible names, and the durable names."""

    number: int
    mode: int
    modified_ns: int
    children: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)


Node = CrashInode | CrashDirectory


@dataclass(frozen=True, slots=True)
class Edit:
    """One name that a change adds to, or removes from, a directory's durable names."""

    directory: CrashDirectory
    name: str
    node: Node
    adds: bool

    def apply(self, names: dict[str, Node]) -> None:
        """Apply the edit to *names*. A name that refers to another file by now is not removed."""
        if self.adds:
            names[self.name] = self.node
        elif names.get(self.name) is self.node:
            del names[self.name]


@dataclass(frozen=True, slots=True)
class Change:
    """An atomic change of names: it survives a crash completely or not at all. A rename removes and adds a name."""

    edits: tuple[Edit, ...]

    def synced_with(self, directory: CrashDirectory) -> tuple[tuple[Edit, ...], Change | None]:
        """
        Return the edits that a sync of *directory* makes durable, and the rest of the change.

        If the removal of a moved file's old name becomes durable, the new name does, too: a rename never loses both. In
        the other order the old name may stay.
        """
        here = any(edit.directory is directory and not edit.adds for edit in self.edits)
        done = tuple(edit for edit in self.edits if here or edit.directory is directory)
        left = tuple(edit for edit in self.edits if edit not in done)
        return done, Change(left) if left else None

    def without(self, later: Edit) -> Change:
        """Return this change without its edit of the name that *later* determines."""
        return Change(tuple(
            edit for edit in self.edits
            if edit.directory is not later.directory or edit.name != later.name
        ))  # fmt: skip


@dataclass(slots=True)
class CrashTree:
    """All directories and files, and the name changes that are not durable yet, oldest first."""

    root: CrashDirectory
    pending: list[Change] = field(default_factory=list)
    last_number: int = 1

    def next_number(self) -> int:
        """Return an inode number that no other node has."""
        self.last_number += 1
        return self.last_number

    def add(self, directory: CrashDirectory, name: str, node: Node) -> None:
        """Give *node* a name."""
        directory.children[name] = node
        self.pending.append(Change((Edit(directory, name, node, adds=True),)))

    def take(self, directory: CrashDirectory, name: str) -> None:
        """Remove a name."""
        node = directory.children.pop(name)
        self.pending.append(Change((Edit(directory, name, node, adds=False),)))

    def move(self, source: CrashDirectory, old: str, target: CrashDirectory, new: str) -> None:
        """Rename: one change, two names."""
        node = source.children.pop(old)
        target.children[new] = node
        takes = Edit(source, old, node, adds=False)
        self.pending.append(Change((takes, Edit(target, new, node, adds=True))))

    def sync(self, directory: CrashDirectory) -> None:
        """Make the names in *directory* durable."""
        left: list[Change] = []
        for change in self.pending:
            done, rest = change.synced_with(directory)
            for edit in done:
                edit.apply(edit.directory.durable)
                if edit.directory is not directory:
                    # An earlier change must not undo a name that a later change made durable.
                    left = [earlier.without(edit) for earlier in left]
            if rest is not None:
                left.append(rest)
        self.pending = [change for change in left if change.edits]

    def after_crash(self, chance: Chance) -> CrashTree:
        """Return the tree after a power loss, completely durable."""
        names: dict[CrashDirectory, dict[str, Node]] = {}
        for change in self.pending:
            if chance.keeps():
                for edit in change.edits:
                    edit.apply(names.setdefault(edit.directory, dict(edit.directory.durable)))
        files: dict[CrashInode, CrashInode] = {}

        def survivor(node: Node) -> Node:
            if isinstance(node, CrashDirectory):
                return surviving_directory(node)
            if node not in files:  # a moved file may have two names
                files[node] = node.survivor(chance)
            return files[node]

        def surviving_directory(directory: CrashDirectory) -> CrashDirectory:
            found = names.get(directory, directory.durable)
            children = {name: survivor(child) for name, child in found.items()}
            return CrashDirectory(directory.number, directory.mode, directory.modified_ns, children, dict(children))

        return CrashTree(surviving_directory(self.root), [], self.last_number)

    def after_kill(self) -> CrashTree:
        """Return a copy of the tree, with its unsynced state."""
        files: dict[CrashInode, CrashInode] = {}
        directories: dict[CrashDirectory, CrashDirectory] = {}

        def copied(node: Node) -> Node:
            if isinstance(node, CrashDirectory):
                return copied_directory(node)
            if node not in files:
                files[node] = node.copy()
            return files[node]

        def copied_directory(directory: CrashDirectory) -> CrashDirectory:
            if directory not in directories:
                copy = CrashDirectory(directory.number, directory.mode, directory.modified_ns)
                directories[directory] = copy
                copy.children = {name: copied(child) for name, child in directory.children.items()}
                copy.durable = {name: copied(child) for name, child in directory.durable.items()}
            return directories[directory]

        def copied_edit(edit: Edit) -> Edit:
            return Edit(copied_directory(edit.directory), edit.name, copied(edit.node), edit.adds)

        pending = [Change(tuple(copied_edit(edit) for edit in change.edits)) for change in self.pending]
        return CrashTree(copied_directory(self.root), pending, self.last_number)
