"""Plans: every gradient element once, files that come back as they were, hashes that notice all."""

import copy
import itertools
import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsched.cli.plan_facts import headline
from commsched.errors import CommschedError
from commsched.net.bucket import BucketSpec, Piece
from commsched.net.graph import Layer, Net, Tensor
from commsched.net.sparsity import Sparsity
from commsched.plan import file
from commsched.plan.model import Launch, Plan, Reason
from commsched.program.read_plan import checked_plan, read_plan
from commsched.records import digest
from tests.support import sampling
from tests.support.small_plans import graph, machine, plan

METHODS = ("ring+dense", "tree+fp16", "all-gather+coo")
LAWS = (
    Sparsity(),
    Sparsity(law="uniform", density=0.25),
    Sparsity(law="mask", density=0.5),
    Sparsity(law="curve", density=0.1, curve=((1, 0.1), (8, 0.4))),
)
SMALL = plan(graph([30, 20, 10]), machine(2, 2), list(METHODS))


@st.composite
def nets(draw: st.DrawFn) -> Net:
    """Chains of up to five layers with up to three tensors each, at least one in all."""
    layers: list[Layer] = []
    for i in range(draw(st.integers(1, 5))):
        tensors = tuple(
            Tensor(
                name=f"t{i}.{j}",
                shape=(draw(st.integers(1, 40)),),
                sparsity=draw(st.sampled_from(LAWS)),
            )
            for j in range(draw(st.integers(0 if i else 1, 3)))
        )
        seconds = draw(st.floats(0, 1))
        after = (layers[-1].name,) if layers else ()
        layers.append(
            Layer(name=f"l{i}", after=after, tensors=tensors, forward=seconds, backward=seconds)
        )
    return Net(name="random", layers=tuple(layers), source="test")


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Tensors cut at random places, the pieces dealt to random launches."""
    net = draw(nets())
    pieces = []
    for tensor in net.tensors.values():
        inner = draw(st.sets(st.integers(0, tensor.numel), max_size=3)) | {0, tensor.numel}
        cuts = sorted(inner)
        pieces += [Piece(tensor.name, a, b) for a, b in itertools.pairwise(cuts)]
    pieces = draw(st.permutations(pieces))
    inner = draw(st.sets(st.integers(1, len(pieces)), max_size=4)) | {0, len(pieces)}
    cuts = sorted(inner)
    position = {t.name: i for i, layer in enumerate(net.layers) for t in layer.tensors}
    made = []
    for number, (first, stop) in enumerate(itertools.pairwise(cuts)):
        ready = min(position[piece.tensor] for piece in pieces[first:stop])
        reason = Reason(seconds=draw(st.floats(0, 10)), runner_up=draw(st.sampled_from(METHODS)))
        made.append(
            Launch(
                name=f"b{number}",
                pieces=tuple(pieces[first:stop]),
                after=net.layers[draw(st.integers(0, ready))].name,
                method=draw(st.sampled_from(METHODS)),
                stream=draw(st.sampled_from(["inside", "between"])),
                priority=draw(st.integers(-5, 5)),
                reason=draw(st.sampled_from([None, reason])),
            )
        )
    return Plan(
        net=net,
        machine=machine(draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        launches=tuple(made),
        params={"overlap": draw(st.sampled_from(["forward", "backward"]))},
        mean=draw(st.booleans()),
        seed=draw(st.integers(0, 2**62)),
        planner=draw(st.text(max_size=8).filter(_printable)),
    )


def _printable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- Round trips and hashes. ---


@given(made=plans())
def test_a_plan_comes_back_from_its_file_as_it_was(made):
    again = file.from_data(json.loads(json.dumps(file.to_data(made))), "again")
    for field in fields(Plan):
        assert getattr(again, field.name) == getattr(made, field.name)
    assert again.hash == made.hash == file.to_data(made)["hash"]


def test_a_written_plan_is_read_again(tmp_path):
    file.write(tmp_path / "plan.json", SMALL)
    again = file.read(tmp_path / "plan.json")
    assert file.to_data(again) == file.to_data(SMALL)
    assert again.hash == SMALL.hash
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_an_iteration_is_milliseconds_in_the_file():
    made = plan(graph([4]), machine(1, 2), ["ring+dense"])
    assert file.to_data(replace(made, iteration=0.125))["iteration_ms"] == 125.0


def test_the_hash_does_not_depend_on_the_order_of_keys_or_on_spaces():
    data = file.to_data(SMALL)
    backwards = dict(reversed(data.items()))
    assert digest(backwards) == SMALL.hash
    spaced = json.loads(json.dumps(data, indent=3))
    assert file.from_data(spaced, "here").hash == SMALL.hash


def leaves(node: object, path: tuple[object, ...] = ()):
    """Every place in a tree of JSON that holds no further places."""
    if isinstance(node, dict | list) and node:
        for key in node if isinstance(node, dict) else range(len(node)):
            yield from leaves(node[key], (*path, key))
    else:
        yield path


def put(tree: object, path: tuple[object, ...], value: object) -> object:
    """A copy of the tree with another value at a place."""
    tree = copy.deepcopy(tree)
    node = tree
    for key in path[:-1]:
        node = node[key]  # type: ignore[index]
    node[path[-1]] = value  # type: ignore[index]
    return tree


DATA = json.loads(json.dumps(file.to_data(SMALL)))
PLACES = [path for path in leaves(DATA) if path != ("hash",)]


@pytest.mark.parametrize("path", PLACES, ids=lambda path: ".".join(map(str, path)))
def test_a_changed_value_anywhere_is_noticed(path):
    old = DATA
    for key in path:
        old = old[key]
    new = (not old) if isinstance(old, bool) else f"{old}x" if isinstance(old, str) else 7.25
    assert digest(put(DATA, path, new)) != SMALL.hash
    with pytest.raises(CommschedError, match=r"^p\.json: "):
        file.from_data(put(DATA, path, new), "p.json")


@pytest.mark.parametrize(
    "change",
    [
        {"strategy": "other"},
        {"params": {"overlap": "backward"}},
        {"mean": False},
        {"seed": 1},
        {"planner": "me"},
        {"machine": machine(1, 4)},
        {"net": replace(SMALL.net, batch=2)},
        {"launches": (replace(SMALL.launches[0], priority=9), *SMALL.launches[1:])},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_is_in_the_hash(change):
    assert replace(SMALL, **change).hash != SMALL.hash


# --- Every element exactly once. ---


def counts(made: Plan) -> dict[str, np.ndarray]:
    found = {name: np.zeros(tensor.numel, int) for name, tensor in made.net.tensors.items()}
    for launch in made.launches:
        for name, start, stop in launch.pieces:
            found[name][start:stop] += 1
    return found


@given(made=plans(), data=st.data())
def test_a_plan_passes_exactly_if_every_element_is_exchanged_once(made, data):
    which = data.draw(st.integers(0, len(made.launches) - 1))
    launch = made.launches[which]
    at = data.draw(st.integers(0, len(launch.pieces) - 1))
    piece = launch.pieces[at]
    shift = data.draw(st.integers(-3, 3))
    numel = made.net.tensors[piece.tensor].numel
    moved = Piece(piece.tensor, piece.start, min(max(piece.stop + shift, piece.start), numel))
    pieces = (*launch.pieces[:at], moved, *launch.pieces[at + 1 :])
    launches = list(made.launches)
    launches[which] = replace(launch, pieces=pieces)
    changed = replace(made, launches=tuple(launches))
    if all((count == 1).all() for count in counts(changed).values()):
        changed.check()
    else:
        with pytest.raises(CommschedError, match=r"is exchanged (never|more than once)"):
            changed.check()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[1:], r"tensor 'l\d.weight': element 0 is exchanged never"),
        (lambda rows: [*rows, replace(rows[0], name="again")], "element 0 is exchanged more than"),
        (lambda rows: [rows[0], *rows], "two launches are named 'b0'"),
        (lambda rows: [replace(rows[0], after="x"), *rows[1:]], "launch 'b0': no layer named 'x'"),
        (
            lambda rows: [*rows[:-1], replace(rows[-1], after="l2")],
            "tensor 'l0.weight' is ready only after layer 'l0', which comes later than 'l2'",
        ),
        (
            lambda rows: [replace(rows[0], group=(0, 4)), *rows[1:]],
            r"a rank of the group is outside 0\.\.3",
        ),
        (
            lambda rows: [replace(rows[0], pieces=(Piece("x", 0, 1),)), *rows[1:]],
            "launch 'b0': no tensor named 'x' in the net",
        ),
        (
            lambda rows: [replace(rows[0], pieces=(Piece("l2.weight", 0, 11),)), *rows[1:]],
            "exchanged more than once",
        ),
    ],
)
def test_a_plan_that_misplaces_a_gradient_is_refused(change, message):
    broken = replace(SMALL, launches=tuple(change(list(SMALL.launches))))
    with pytest.raises(CommschedError, match=message):
        broken.check()
    with pytest.raises(CommschedError, match=f"^plan: .*{message}"):
        checked_plan(broken)


# --- Bad files. ---


@settings(max_examples=sampling.examples(300))
@given(data=st.data())
def test_a_damaged_plan_gives_one_sentence_or_a_plan(data):
    path = data.draw(st.sampled_from(PLACES))
    path = path[: data.draw(st.integers(1, len(path)))]
    values = (-1, -0.5, 0, 1e300, 10**30, True, None, "", "x", "a\nb", [], [1], {}, ["t", 2, 1])
    tree = put(DATA, path, data.draw(st.sampled_from(values)))
    if data.draw(st.booleans()):
        node = tree
        for key in path[:-1]:
            node = node[key]
        del node[path[-1]]
    if path != ("hash",) and "hash" in tree:
        tree["hash"] = digest(tree)  # someone who edits a plan may also correct the hash
    complaint = ""
    try:
        made = file.from_data(tree, "p.json")
        made.check()
        checked_plan(made)
    except CommschedError as error:
        complaint = str(error)
    assert not complaint or complaint.startswith(("p.json: ", "plan: "))
    assert "\n" not in complaint


@given(data=st.data())
def test_torn_and_random_bytes_give_one_sentence(data, tmp_path_factory):
    text = json.dumps(DATA).encode()
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    path = tmp_path_factory.getbasetemp() / "torn.json"
    path.write_bytes(data.draw(st.sampled_from([cut, data.draw(st.binary(max_size=40))])))
    with pytest.raises(CommschedError, match=r"torn\.json: "):
        file.read(path)


def test_a_missing_plan_is_one_sentence():
    with pytest.raises(CommschedError, match=r"^/nowhere/p\.json: cannot be read: No such file"):
        file.read(Path("/nowhere/p.json"))


# --- Buckets. ---


@given(made=plans(), cuts=st.lists(st.integers(0, 300), min_size=2, max_size=6), merged=st.data())
def test_the_non_zeros_of_a_bucket_are_those_of_its_parts(made, cuts, merged):
    ranks = merged.draw(st.integers(1, 8))
    for launch in made.launches:
        spec = made.spec(launch)
        edges = np.sort(np.clip([0, *cuts, spec.numel], 0, spec.numel))
        parts = spec.nonzeros(edges[:-1], edges[1:], ranks)
        whole = spec.nonzeros(np.array([0]), np.array([spec.numel]), ranks)
        np.testing.assert_allclose(parts.sum(), whole[0], rtol=1e-9)
        assert (parts >= 0).all()
        assert (parts <= np.diff(edges) * (1 + 1e-12)).all()


@given(numel=st.integers(0, 1000), blocks=st.integers(1, 50))
def test_blocks_differ_by_at_most_one_element(numel, blocks):
    lengths = np.diff(BucketSpec.uniform(numel).cuts(blocks))
    assert lengths.sum() == numel
    assert len(lengths) == blocks
    assert lengths.max() - lengths.min() <= 1


@pytest.mark.parametrize("piece", [("x", 0, 1), ("t", 1, 1), ("t", -1, 1), ("t", 0, 4)])
def test_a_piece_outside_of_its_tensor_is_refused(piece):
    with pytest.raises(CommschedError, match=r"no tensor named|allowed is 0 <= start < stop <= 3"):
        BucketSpec.of((Piece(*piece),), {"t": Tensor(name="t", shape=(3,))})


@pytest.mark.parametrize(
    "method", ["nonsense", "topk:2", "gtopk:0", "powersgd:1e9", "ring+topk:2", "ring+topk:0.1"]
)
def test_methods_are_checked_when_a_plan_is_read(tmp_path, method):
    data = {**DATA, "launches": [{**DATA["launches"][0], "method": method}, *DATA["launches"][1:]]}
    path = tmp_path / "p.json"
    path.write_text(json.dumps({**data, "hash": digest(data)}))
    family, _, parameter = method.rpartition("+")[2].partition(":")
    with pytest.raises(CommschedError, match=r"p\.json: launch ") as refusal:
        read_plan(path)
    assert family in str(refusal.value)
    assert parameter in str(refusal.value)


def test_the_strategy_is_checked_when_a_plan_is_read(tmp_path):
    data = {**DATA, "strategy": "nonsense"}
    (tmp_path / "p.json").write_text(json.dumps({**data, "hash": digest(data)}))
    with pytest.raises(CommschedError, match=r"p\.json: no strategy named 'nonsense'"):
        read_plan(tmp_path / "p.json")


def test_one_launch_and_one_rank_are_told_as_one():
    told = headline(plan(graph([1000]), machine(2, 1), ["ring+dense"]))
    assert "on test, 2 x 1 rank, sync, 1 launch" in told
