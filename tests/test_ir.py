"""Graphs and net files."""

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsched.errors import CommschedError
from commsched.machine.model import Device
from commsched.net import file
from commsched.net.graph import Layer, Net, Tensor
from commsched.net.sparsity import Sparsity
from tests.support import sampling


def chain(*names: str) -> tuple[Layer, ...]:
    return tuple(
        Layer(
            name=name,
            after=names[i - 1 : i] if i else (),
            tensors=(Tensor(name=f"{name}.w", shape=(2, 3)),),
        )
        for i, name in enumerate(names)
    )


def test_layers_are_sorted_only_where_the_edges_need_it() -> None:
    a, b, c = chain("a", "b", "c")
    free = Layer(name="free")
    assert [x.name for x in Net(name="n", layers=(free, a, b, c)).layers] == [
        "free",
        "a",
        "b",
        "c",
    ]
    assert [x.name for x in Net(name="n", layers=(c, free, b, a)).layers] == [
        "free",
        "a",
        "b",
        "c",
    ]


@given(order=st.permutations(range(9)), data=st.data())
def test_sorted_layers_follow_their_predecessors(order: list[int], data: st.DataObject) -> None:
    layers = []
    for i in range(9):
        before = data.draw(st.sets(st.integers(0, i - 1))) if i else set()
        layers.append(Layer(name=f"l{i}", after=tuple(f"l{k}" for k in sorted(before))))
    graph = Net(name="n", layers=tuple(layers[i] for i in order))
    place = {layer.name: i for i, layer in enumerate(graph.layers)}
    assert all(place[b] < place[layer.name] for layer in graph.layers for b in layer.after)
    assert Net(name="n", layers=graph.layers).layers == graph.layers


def test_the_dag_carries_layers_and_edges() -> None:
    graph = Net(name="n", layers=chain("a", "b", "c"))
    assert list(graph.dag.edges) == [("a", "b"), ("b", "c")]
    assert [graph.dag.nodes[n]["layer"] for n in graph.dag] == list(graph.layers)
    assert list(graph.tensors) == ["a.w", "b.w", "c.w"]
    assert graph.numel == 18


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ((), "a net needs one or more layers"),
        ((Layer(name="a", after=("b",)), Layer(name="b", after=("a",))), "form a loop: "),
        ((Layer(name="a", after=("a",)),), "form a loop: a -> a"),
        ((Layer(name="a", after=("z",)),), "layer 'a' comes after 'z', which is not a layer"),
        ((Layer(name="a"), Layer(name="a")), "two layers are named 'a'"),
        ((Layer(name="a"), Layer(name="b", after=("a", "a"))), "two predecessor.* are named 'a'"),
    ],
)
def test_a_graph_that_is_no_dag_is_refused(layers: tuple[Layer, ...], message: str) -> None:
    with pytest.raises(CommschedError, match=message):
        Net(name="n", layers=layers)


def test_a_loop_is_shown_along_the_data() -> None:
    conv, relu = Layer(name="conv1", after=("relu1",)), Layer(name="relu1", after=("conv1",))
    with pytest.raises(CommschedError) as error:
        Net(name="n", layers=(conv, relu))
    loops = [
        f"the layers form a loop: {s}"
        for s in ("conv1 -> relu1 -> conv1", "relu1 -> conv1 -> relu1")
    ]
    assert str(error.value) in loops


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("field", ["forward", "backward_flops", "activation"])
def test_work_is_finite_and_not_negative(field: str, value: float) -> None:
    with pytest.raises(CommschedError, match="must be finite and at least 0"):
        Layer(name="a", **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_the_decay_of_gradients_is_finite_and_not_negative(value: float) -> None:
    with pytest.raises(CommschedError, match="tensor 'a': decay must be finite and at least 0"):
        Tensor(name="a", shape=(2,), decay=value)


DEVICE = Device(name="d", memory=1e9, bandwidth=1e9, flops=2e9, efficiency=0.5)


def test_measured_seconds_win_over_the_roofline() -> None:
    layer = Layer(name="a", backward=7.0, forward_flops=2e9, forward_bytes=1e9, backward_flops=9e9)
    graph = Net(name="n", layers=(layer,))
    assert graph.seconds(layer, DEVICE) == (2.0, 7.0)


@given(flops=st.floats(0, 1e15), nbytes=st.floats(0, 1e12))
def test_the_roofline_is_the_slower_of_compute_and_memory(flops: float, nbytes: float) -> None:
    layer = Layer(name="a", backward_flops=flops, backward_bytes=nbytes)
    seconds = Net(name="n", layers=(layer,)).seconds(layer, DEVICE)[1]
    assert seconds == pytest.approx(max(flops / 1e9, nbytes / 1e9))


@given(scale=st.floats(0.01, 1.0), stretch=st.floats(0.1, 10.0))
def test_a_scaled_net_keeps_its_proportions(scale: float, stretch: float) -> None:
    words = Tensor(name="e", shape=(1000, 8), sparsity=Sparsity(law="zipf", density=0.1, rows=1000))
    layer = Layer(name="a", tensors=(words,), forward=2.0, backward_flops=4e9, activation=100.0)
    graph = Net(name="n", layers=(layer,), batch=3)
    small = graph.scaled(scale, stretch)
    got = small.layers[0]
    assert got.forward == pytest.approx(2.0 * scale * stretch)
    assert got.backward is None
    assert small.seconds(got, DEVICE)[1] == pytest.approx(4.0 * scale * stretch)
    assert got.activation == pytest.approx(100.0 * scale)
    assert got.tensors[0].shape == (max(2, round(1000 * scale)), 8)
    assert got.tensors[0].sparsity.rows == got.tensors[0].shape[0]
    assert small.batch == 3
    assert graph.scaled(1.0) == graph


def test_scaling_keeps_at_least_one_row() -> None:
    small = Net(name="n", layers=chain("a")).scaled(1e-6)
    assert small.tensors["a.w"].shape == (1, 3)
    with pytest.raises(CommschedError, match="scale must be finite"):
        small.scaled(0.0)


NET = {
    "format": "commsched-net/1",
    "name": "tiny",
    "source": "made up for a test",
    "batch": 4,
    "layers": [
        {
            "name": "embedding",
            "forward_us": 3.3,
            "backward_us": 1e2,
            "tensors": [
                {
                    "name": "embedding.weight",
                    "shape": [100, 8],
                    "sparsity": {"law": "zipf", "density": 0.1, "rows": 100, "exponent": 1.1},
                }
            ],
        },
        {"name": "left", "forward_flops": 1e9, "backward_flops": 2e9, "activation_bytes": 64},
        {"name": "right", "after": ["embedding"], "forward_bytes": 7},
        {
            "name": "head",
            "after": ["left", "right"],
            "tensors": [
                {"name": "head.weight", "shape": [8], "dtype": "float16"},
                {
                    "name": "head.bias",
                    "shape": [8],
                    "sparsity": {"law": "curve", "density": 0.1, "curve": [[1, 0.1], [8, 0.5]]},
                },
            ],
        },
    ],
}


def test_a_net_file_says_what_it_means() -> None:
    graph = file.from_data(NET, "here")
    assert [layer.after for layer in graph.layers] == [
        (), ("embedding",), ("embedding",), ("left", "right"),
    ]  # fmt: skip
    assert graph.layers[0].forward == pytest.approx(3.3e-6)
    assert graph.tensors["head.weight"].nbytes == 16
    assert graph.tensors["head.bias"].sparsity.curve == ((1, 0.1), (8, 0.5))


@given(numbers=st.lists(st.floats(0, 1e12), min_size=3, max_size=3))
def test_reading_and_writing_a_net_is_a_fixed_point(numbers: list[float]) -> None:
    layer = Layer(name="a", forward=numbers[0], backward_flops=numbers[1], activation=numbers[2])
    once = file.to_data(Net(name="n", layers=(layer,)))
    assert file.to_data(file.from_data(once, "here")) == once
    again = file.from_data(NET, "here")
    assert file.from_data(file.to_data(again), "here") == again


def mutated(data: st.DataObject, tree: object) -> object:
    """Change one place of a JSON tree: drop it, or give it another value."""
    tree = copy.deepcopy(tree)
    places: list[tuple[object, object]] = []

    def walk(node: object) -> None:
        keys = (
            node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        )
        for key in keys:
            places.append((node, key))
            walk(node[key])  # type: ignore[index]

    walk(tree)
    node, key = data.draw(st.sampled_from(places))
    values = [
        -1,
        -0.5,
        0,
        1e300,
        10**30,
        True,
        None,
        "",
        "x",
        "a\nb",
        [],
        [1],
        {},
        {"x": 1},
        [[2, 1], [1, 2]],
    ]
    if data.draw(st.booleans()):
        del node[key]  # type: ignore[attr-defined]
    else:
        node[key] = data.draw(st.sampled_from(values))  # type: ignore[index]
    return tree


@settings(max_examples=sampling.examples(300))
@given(data=st.data())
def test_a_damaged_net_gives_one_sentence_or_a_graph(data: st.DataObject) -> None:
    broken = mutated(data, NET)
    try:
        complaint = ""
        file.to_data(file.from_data(broken, "net.json"))
    except CommschedError as error:
        complaint = str(error)
    assert not complaint or complaint.startswith("net.json: ")
    assert "\n" not in complaint


@given(data=st.data())
def test_torn_and_random_bytes_give_one_sentence(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = json.dumps(NET).encode()
    kind = data.draw(st.sampled_from(["cut", "random", "flip"]))
    if kind == "cut":
        text = text[: data.draw(st.integers(0, len(text) - 1))]
    elif kind == "random":
        text = data.draw(st.binary(max_size=50))
    else:
        place = data.draw(st.integers(0, len(text) - 1))
        text = text[:place] + data.draw(st.binary(min_size=1, max_size=1)) + text[place + 1 :]
    path = tmp_path_factory.getbasetemp() / "torn.json"
    path.write_bytes(text)
    try:
        complaint = ""
        file.read(path)
    except CommschedError as error:
        complaint = str(error)
    assert not complaint or complaint.startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": "commsched-net/1"}', "missing required field `name`"),
        ('{"format": "commsched-machine/1"}', "this is a machine file, and a net is expected"),
        ('{"name": "a", "name": "b"}', "key 'name' stands twice"),
        ('{"batch": NaN}', "NaN is not a number"),
        ('{"batch": 1e999}', "out of range"),
        (
            '{"format": "commsched-net/1", "name": "n", "source": "test", "layers": [{"name": "a",'
            ' "tensors": [{"name": "w", "shape": [2], "decay": -1}]}]}',
            "decay must be finite and at least 0, got -1",
        ),
        ("[" * 100_000, "nested too deeply|not valid JSON"),
    ],
)
def test_a_bad_net_file_is_named_and_explained(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "net.json").write_text(text)
    with pytest.raises(CommschedError, match=f"net.json: .*({message})"):
        file.load(tmp_path / "net.json")


def test_a_missing_net_is_named() -> None:
    with pytest.raises(CommschedError, match=r"nowhere\.json: cannot be read"):
        file.load("nowhere.json")
    with pytest.raises(CommschedError, match=r"no shipped net named 'vgg17'; known: .*vgg16"):
        file.load("vgg17")


def test_unknown_keys_name_their_place() -> None:
    broken = copy.deepcopy(NET)
    broken["layers"][3]["tensors"][0]["shapes"] = 1  # type: ignore[index]
    with pytest.raises(CommschedError) as error:
        file.from_data(broken, "net.json")
    assert str(error.value) == (
        "net.json: contains unknown field `shapes` - at `.layers[3].tensors[0]`;"
        " allowed: name, shape, dtype, sparsity, lists, axis, stack, decay"
    )
