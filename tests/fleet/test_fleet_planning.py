"""How the objects of a batch are shared between the nodes."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from quiver.store.format.fleet.names import InboxObject
from quiver.store.reading.fleet.planning import OBJECT_COST_BYTES_MIN
from quiver.store.reading.fleet.planning import share as share_at_cost

share = partial(share_at_cost, cost_bytes_min=1)


def objects(*sizes):
    return tuple(InboxObject(number, number, 0, size) for number, size in enumerate(sizes))


def test_a_backlog_does_not_delay_other_nodes():
    """A node with a thousand segments gets what the others leave."""
    chains = {"a": objects(*[10] * 1000), "b": objects(10), "c": objects(10, 10)}
    shared = share(chains, bytes_max=100, turn=0)
    assert {node: len(found) for node, found in shared.items()} == {"a": 7, "b": 1, "c": 2}


def test_shares_are_equal_by_bytes():
    """A node with large segments gets fewer of them."""
    chains = {"a": objects(*[100] * 50), "b": objects(*[10] * 500)}
    shared = share(chains, bytes_max=1000, turn=0)
    assert {node: sum(one.size_bytes for one in found) for node, found in shared.items()} == {"a": 500, "b": 500}


def test_every_node_is_first_in_some_batch():
    """Also if a batch has only one object."""
    chains = {f"{node:02}": objects(10, 10) for node in range(12)}
    first = [next(iter(share(chains, bytes_max=1, turn=turn))) for turn in range(12)]
    assert sorted(first) == sorted(chains)


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=2), st.lists(st.integers(0, 50), max_size=6)),
    st.none() | st.integers(1, 200),
    st.integers(0, 2**63),
)
def test_a_batch_has_the_beginning_of_each_chain(sizes, bytes_max, turn):
    """Never a gap, never more than the limit except for its only object, and all of it without a limit."""
    chains = {node: objects(*found) for node, found in sizes.items()}
    shared = share(chains, bytes_max=bytes_max, turn=turn)
    assert all(found == chains[node][: len(found)] for node, found in shared.items())
    taken = [one for found in shared.values() for one in found]
    if bytes_max is None:
        assert len(taken) == sum(map(len, chains.values()))
    else:
        assert len(taken) == 1 or sum(one.size_bytes for one in taken) <= bytes_max
    assert bool(taken) == any(chains.values())
    assert share(chains, bytes_max=bytes_max, turn=turn) == shared


def test_the_number_of_objects_is_limited():
    """As a batch is one object itself."""
    shared = share({"a": objects(*[1] * 10), "b": objects(*[1] * 10)}, bytes_max=None, turn=0, objects_max=5)
    assert sum(map(len, shared.values())) == 5


def test_a_million_tiny_objects_are_no_batch():
    """Each costs a request, so a node cannot delay the others with them."""
    chains = {"hostile": objects(*[0] * 100_000), "b": objects(100_000, 100_000)}
    shared = share_at_cost(chains, bytes_max=100 * OBJECT_COST_BYTES_MIN, turn=0)
    assert len(shared["b"]) == 2
    assert len(shared["hostile"]) < 100
