"""Sentences as trees of their prefixes, so that a causal model computes a shared prefix once.

Sorted sentences share most with their neighbours: every sentence adds to the tree only the nodes
after what it has in common with the one before. A pack is a run of neighbours laid out as one
row of nodes in preorder; at its beginning the common prefix is computed anew.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from eval.scorers.batching import Tokens

#: The depth of what is no node.
PADDING = -1


@dataclass(frozen=True)
class Trees:
    """Paths from the root in lexicographic order, and the requests each of them computes.

    No path is the beginning of another. A path ends before its last wanted token: a token is a
    node only where something after it is wanted.
    """

    tokens: Tokens
    rows: np.ndarray  # (paths,) the row of `tokens` that a path is the beginning of
    lengths: np.ndarray  # (paths,) nodes of the whole path
    common: np.ndarray  # (paths,) nodes in common with the path before; 0 for the first
    requests: np.ndarray  # (requests,) their numbers, in order of path, depth and token
    path: np.ndarray  # (requests,) the first path with the request's node on it
    depth: np.ndarray  # (requests,) where on the path that node is: the context's last token
    target: np.ndarray  # (requests,) the token asked for

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def grown(self) -> np.ndarray:
        """Nodes that all paths before a path have, each counted once. (paths + 1,)"""
        return np.concatenate([[0], np.cumsum(self.lengths - self.common)])

    def asked(self, paths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The requests of `paths` and, for each, which of `paths` it is of.

        Both are (their requests,); the first indexes `requests`, `depth` and `target`.
        """
        first, last = (np.searchsorted(self.path, paths, side) for side in ("left", "right"))
        of = np.repeat(np.arange(len(paths)), last - first)
        before = np.cumsum(last - first) - (last - first)
        return np.arange(len(of)) - before[of] + first[of], of


@dataclass(frozen=True)
class Packs:
    """Several packs as one batch."""

    ids: np.ndarray  # (packs, nodes) int64
    depths: np.ndarray  # (packs, nodes) int64; PADDING: no node
    asked: np.ndarray  # (requests,) into the plan's requests
    nodes: np.ndarray  # (requests,) the node of each, in the flattened batch, ascending


def plan(tokens: Tokens, rows: np.ndarray, places: np.ndarray) -> Trees:
    """Plan the trees for requests zip(rows, places): the token at `place`, given those before.

    Raises:
        ValueError: a place is below 1, where there is no context.
    """
    if len(places) and places.min() < 1:
        raise ValueError("a causal model needs a token before the one it scores")
    needed, of = np.unique(rows, return_inverse=True)
    lengths = np.zeros(len(needed), np.int64)
    np.maximum.at(lengths, of, places)

    order = _lexicographic(tokens, needed, lengths)
    needed, lengths = needed[order], lengths[order]
    common = _common(tokens, needed, lengths)
    # The beginning of the next one needs no path of its own. In such a run `common` only grows,
    # so that its first value is what the run's last, longest path shares with the path before.
    kept = np.append(common[1:] < lengths[:-1], True)[: len(needed)]
    path_of = np.empty(len(needed), np.int64)
    path_of[order] = np.cumsum(kept) - kept
    common = common[np.append(True, kept[:-1])[: len(needed)]]
    needed, lengths = needed[kept], lengths[kept]

    depth = places - 1
    path = _first_with(common, lengths, path_of[of], depth)
    target = tokens.flat[tokens.starts[rows] + places]
    requests = np.lexsort((target, depth, path))
    return Trees(
        tokens,
        needed,
        lengths,
        common,
        requests,
        path[requests],
        depth[requests],
        target[requests],
    )


def packs(made: Trees, size: int, first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Cut paths first … last - 1 into packs: (from, to, nodes), each at most `size` nodes.

    A path longer than `size` is a pack of its own.
    """
    grown = made.grown
    while first < last:
        # The first path brings all its nodes, those after it only what is new.
        base = grown[first] - made.common[first]
        end = int(np.searchsorted(grown, base + size, "right")) - 1
        end = min(max(end, first + 1), last)
        yield first, end, int(grown[end] - base)
        first = end


def lay_out(made: Trees, begins: list[int], end: int) -> Packs:
    """Lay out neighbouring packs, which begin at the paths `begins`, as a batch padded right."""
    first = begins[0]
    lengths, common = made.lengths[first:end], made.common[first:end].copy()
    of_pack = np.array(begins) - first
    common[of_pack] = 0
    new = lengths - common
    start = np.cumsum(new) - new  # of a path's new nodes, in all packs one after the other
    bounds = np.append(start[of_pack], new.sum())
    width = int(np.diff(bounds).max())
    pack = np.repeat(np.arange(len(begins)), np.diff(np.append(of_pack, len(lengths))))
    place = start - bounds[pack] + pack * width  # the same in the flattened batch

    path = np.repeat(np.arange(len(new)), new)
    step = np.arange(len(path)) - start[path]
    ids = np.zeros(len(begins) * width, np.int64)
    depths = np.full(len(ids), PADDING)
    depth = common[path] + step
    depths[place[path] + step] = depth
    ids[place[path] + step] = made.tokens.flat[made.tokens.starts[made.rows[first + path]] + depth]

    asked = np.arange(*np.searchsorted(made.path, [first, end]))
    path = made.path[asked] - first
    nodes = place[path] + made.depth[asked] - common[path]
    shape = len(begins), width
    return Packs(ids.reshape(shape), depths.reshape(shape), asked, nodes)


def visible(depths: torch.Tensor) -> torch.Tensor:
    """What each node sees: itself and its ancestors. (packs, nodes) → (packs, nodes, nodes) bool

    In preorder a node's descendants follow it, up to the next node that is no deeper than it.
    Padding sees only itself, and nothing sees it.
    """
    nodes = torch.arange(depths.shape[1], device=depths.device)
    later = nodes[:, None] < nodes[None, :]
    closes = (depths[:, None, :] <= depths[:, :, None]) & later  # (packs, ancestor, other)
    inside = (closes.cumsum(-1, dtype=torch.int32) == 0) & (nodes[:, None] <= nodes[None, :])
    return inside.transpose(1, 2)


def _lexicographic(tokens: Tokens, rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The order of the first `lengths` tokens of `rows`, sorted; ties by number."""
    # Big-endian bytes sort as the numbers do, and Python compares bytes fast.
    flat = tokens.flat.astype(">u4").tobytes()
    begins = tokens.starts[rows]
    bounds = zip((4 * begins).tolist(), (4 * (begins + lengths)).tolist(), strict=True)
    keys = [flat[begin:end] for begin, end in bounds]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)


def _common(tokens: Tokens, rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """How many tokens each row has in common with the one before it. (rows,)"""
    begins = tokens.starts[rows]
    common = np.zeros(len(rows), np.int64)
    limit = np.minimum(lengths[1:], lengths[:-1])
    alike = np.arange(len(limit))
    depth = 0
    while len(alike):
        alike = alike[limit[alike] > depth]
        alike = alike[tokens.flat[begins[alike] + depth] == tokens.flat[begins[alike + 1] + depth]]
        depth += 1
        common[alike + 1] = depth
    return common


def _first_with(
    common: np.ndarray, lengths: np.ndarray, path: np.ndarray, depth: np.ndarray
) -> np.ndarray:
    """The first path that has the node at `depth` of `path`. (requests,)"""
    found = np.empty(len(path), np.int64)
    by_depth = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[by_depth], np.arange(depth.max(initial=-1) + 2))
    reaching = np.arange(len(lengths))  # the paths as long as this
    for level in range(len(bounds) - 1):
        reaching = reaching[lengths[reaching] > level]
        new = common[reaching] <= level
        latest = reaching[np.maximum.accumulate(np.where(new, np.arange(len(new)), 0))]
        mine = by_depth[bounds[level] : bounds[level + 1]]
        found[mine] = latest[np.searchsorted(reaching, path[mine])]
    return found
