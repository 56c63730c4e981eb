"""`commsched import` of ONNX models: written by hand, and those that the onnx package ships."""

import importlib.util
from math import prod
from pathlib import Path

import pytest

from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.interchange import content
from commsched.interchange.registry import Options, import_file

if importlib.util.find_spec("onnx") is None:
    pytest.skip("onnx is not installed: pip install '.[onnx]'", allow_module_level=True)

import onnx

SHIPPED = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"  # Apache-2.0
TRANSFORMER = """
<ir_version: 8, opset_import: ["" : 17]>
g (int64[batch, sequence] ids) => (float[batch, sequence, 50] scores)
<float[50, 16] words, float[16] scale, float[16] shift, float[16, 16] wq, float[16, 16] wk,
 float[50, 16] head, float[16] one, float[8, 16] places, int64[1] last = {-1}, float root = {4.0}>
{
  seen = Gather(words, ids)
  size = Shape(ids)
  x = Add(seen, places)
  y = LayerNormalization <axis = -1> (x, scale, shift)
  q = MatMul(y, wq)
  k = MatMul(y, wk)
  turned = Transpose <perm = [0, 2, 1]> (k)
  raw = MatMul(q, turned)
  shrunk = Div(raw, root)
  soft = Softmax(shrunk)
  mixed = MatMul(soft, y)
  sum = Add(mixed, x)
  same = Identity(sum)
  out = Transpose <perm = [1, 0]> (head)
  scores = MatMul(same, out)
}
"""


def read(text, folder, **options):
    """A model in ONNX's own words, imported from a file of it; values that no node makes are 0."""
    model, path = onnx.parser.parse_model(text), folder / "model.onnx"
    made = {name for node in model.graph.node for name in node.output}
    for value in [v for v in model.graph.value_info if v.name not in made]:
        dims = [axis.dim_value for axis in value.type.tensor_type.shape.dim]
        zeros = onnx.helper.make_tensor(value.name, 1, dims, bytes(4 * prod(dims)), raw=True)
        model.graph.initializer.append(zeros)
        model.graph.value_info.remove(value)
    path.write_bytes(model.SerializeToString())
    return import_file(content.read(path), Options(name="n", **options))


def imported(text, folder, **options):
    """The net of a model in ONNX's own words."""
    return read(text, folder, **options).net


def test_a_transformer_has_the_work_of_its_matrices_and_its_graph(tmp_path):
    net = imported(TRANSFORMER, tmp_path, batch=3, sizes={"sequence": 8})
    layers = {layer.name.partition("_")[0] + str(i): layer for i, layer in enumerate(net.layers)}
    assert set(net.tensors) == {"words", "places", "scale", "shift", "wq", "wk", "head"}
    assert net.tensors["head"].shape == (50, 16)  # through the transposition of a constant
    work = {name: layer.forward_flops for name, layer in layers.items()}
    assert work["MatMul3"] == 2 * 3 * 8 * 16 * 16
    assert work["MatMul6"] == work["MatMul9"] == 2 * 3 * 8 * 8 * 16  # scores, and their sum
    assert work["MatMul11"] == 2 * 3 * 8 * 16 * 50
    assert work["Softmax8"] == 3 * 8 * 8
    assert layers["Gather0"].forward_bytes == 8 * 3 * 8 + 2 * 4 * 3 * 8 * 16  # not the whole table
    assert layers["Softmax8"].forward_bytes == 2 * 4 * 3 * 8 * 8
    assert all(layer.backward_flops == 2 * layer.forward_flops for layer in net.layers)
    names = [layer.name for layer in net.layers]
    assert set(layers["Add10"].after) == {names[9], names[1]}  # the residual stream
    assert layers["MatMul11"].after == (names[10],)  # past the identity
    assert net.batch == 3


def test_shipped_models_have_the_parameters_and_flops_of_their_papers():
    """Parameters and multiply-adds at 224 x 224."""
    want = {
        "resnet50": (25.56e6, 4.1e9),
        "vgg19": (143.67e6, 19.6e9),
        "bvlc_alexnet": (61e6, 0.7e9),
    }
    for name, (numel, products) in want.items():
        one, four = (
            import_file(
                content.read(SHIPPED / f"light_{name}.onnx"), Options(name="n", batch=k)
            ).net
            for k in (1, 4)
        )
        assert one.numel == pytest.approx(numel, rel=0.01)
        flops = sum(layer.forward_flops for layer in one.layers)
        assert flops / 2 == pytest.approx(products, rel=0.1)
        assert sum(layer.forward_flops for layer in four.layers) == 4 * flops
        assert {t.name: prod(t.shape) for t in four.tensors.values()} == {
            t.name: prod(t.shape) for t in one.tensors.values()
        }


@pytest.mark.by_day(0)
def test_an_imported_model_is_planned(tmp_path, capsys):
    net, plan = str(tmp_path / "net.json"), str(tmp_path / "plan.json")
    model = str(SHIPPED / "light_squeezenet.onnx")
    assert main(["import", model, "-o", net, "--batch", "32"]) == 0
    assert "52 tensors of 4.942 MB" in capsys.readouterr().out
    on = ("--machine", "p3.16xlarge", "--planner", "ddp-25mb")
    assert main(["plan", net, *on, "-o", plan]) == 0
    assert main(["simulate", plan]) == 0


def test_a_larger_batch_moves_no_more_of_constants_that_another_node_owns(tmp_path):
    """The head is the table, transposed."""
    tied = """
<ir_version: 8, opset_import: ["" : 17]>
g (int64[1, 16] ids) => (float[1, 16, 100] y) <float[100, 8] table>
{ x = Gather(table, ids)  head = Transpose <perm = [1, 0]> (table)  y = MatMul(x, head) }
"""
    for batch in (1, 32):
        gather, product = imported(tied, tmp_path, batch=batch).layers
        assert gather.forward_bytes == 8 * 16 * batch + 2 * 4 * 16 * 8 * batch
        assert product.forward_bytes == 4 * (100 * 8 + 16 * batch * (8 + 100))
        assert not product.tensors


RECURRENT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[SHAPE, 4] x, float[1, N, 8] h) => (float[1, N, 8] y)
<float[1, 32, 4] w, float[1, 32, 8] r, float[1, 64] b>
{ read = Identity(x)  all, y, c = LSTM <hidden_size = 8> (read, w, r, b, , h) }
"""


def test_the_batch_of_a_recurrent_net_is_the_axis_that_its_nodes_read_as_batch(tmp_path):
    """An LSTM reads the sequence first, unless a Transpose comes before."""
    fixed = RECURRENT.replace("SHAPE", "128, 2").replace("N", "2")
    one, more = imported(fixed, tmp_path), imported(fixed, tmp_path, batch=6)
    assert (one.batch, more.batch) == (2, 6)
    assert one.layers[-1].forward_flops == 2 * 128 * 2 * 32 * (4 + 8)
    assert more.layers[-1].forward_flops == 3 * one.layers[-1].forward_flops
    turned = fixed.replace("128, 2", "2, 128").replace("Identity", "Transpose <perm=[1, 0, 2]> ")
    assert imported(turned, tmp_path).batch == 2
    named = RECURRENT.replace("SHAPE", "length, N").replace("N", "n")
    assert imported(named, tmp_path, sizes={"length": 128}, batch=6) == more
    some = fixed.replace("(float[128", "(int64[64] steps, float[128")
    some = some.replace("Identity(x)", "Gather(x, steps)")
    assert imported(some, tmp_path).batch == 2
    with pytest.raises(CommschedError, match=r"axis 0 of input 'x' has no size; give --size lengt"):
        imported(named, tmp_path, batch=6)


def test_a_size_of_no_axis_is_refused(tmp_path):
    said = r"^\S*model.onnx: --size sequenze: no input has an axis of that name without a size; n"
    with pytest.raises(CommschedError, match=said):
        imported(TRANSFORMER, tmp_path, sizes={"sequence": 8, "sequenze": 8})
    fixed = TRANSFORMER.replace("batch, sequence", "2, 8")
    with pytest.raises(CommschedError, match=r"--size sequence: no input .*; leave the option out"):
        imported(fixed, tmp_path, sizes={"sequence": 8})


def test_what_cannot_be_imported_is_one_sentence(tmp_path):
    with pytest.raises(CommschedError, match=r"axis 1 of input 'ids' .* give --size sequence=N"):
        imported(TRANSFORMER, tmp_path)
    with pytest.raises(CommschedError, match=r"not an ONNX model|is not known"):
        imported(TRANSFORMER, tmp_path, sizes={"sequence": 9})  # there are 8 places
    whole = (SHIPPED / "light_resnet50.onnx").read_bytes()
    path = tmp_path / "cut.onnx"
    for size in (4, 1000, len(whole) - 7):
        path.write_bytes(whole[:size])
        with pytest.raises(CommschedError, match=r"cut\.onnx: not an ONNX model"):
            import_file(content.read(path), Options(name="n"), "onnx")
    path.write_bytes(whole.replace(b"gpu_0/conv1_w_0", b"gpu_0/conv1_w_\xff"))
    with pytest.raises(CommschedError, match="a name is not UTF-8"):
        import_file(content.read(path), Options(name="n"), "onnx")
    loop = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x, bool go) => (float[2] y)
{ y = If (go) <then_branch = a () => (float[2] b) { b = Neg(x) },
               else_branch = c () => (float[2] d) { d = Abs(x) }> }
"""
    with pytest.raises(CommschedError, match="is a If, whose work depends on the data"):
        imported(loop, tmp_path)
    bare = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
    with pytest.raises(CommschedError, match="no node has parameters"):
        imported(bare, tmp_path)


def test_a_branch_that_only_a_shape_chooses_does_not_cut_the_net(tmp_path):
    """Its input is a constant, but its branches read what a layer made."""
    text = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[4, 8] a) => (float[4, 8] z) <float[8, 8] first, float[8, 8] second>
{ x = MatMul(a, first)  size = Size(x)  go = Equal(size, size)
  y = If (go) <then_branch = t () => (float[4, 8] b) { b = Neg(x) },
               else_branch = e () => (float[4, 8] d) { d = Abs(x) }>
  z = MatMul(y, second) }
"""
    with pytest.raises(CommschedError, match=r"'If' is a If, .*; export the model without control"):
        imported(text, tmp_path)


def test_a_bias_of_one_element_is_a_parameter_and_a_factor_is_none(tmp_path):
    text = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[4, 8] x) => (float[4, 1] y) <float[1, 8] w, float[1] bias, float[1] half>
{ sum = Gemm <transB = 1> (x, w, bias)  y = Mul(sum, half) }
"""
    assert list(imported(text, tmp_path).tensors) == ["w", "bias"]


@pytest.mark.parametrize(
    ("scale", "steps"),
    [
        ("float s = {0.5}, int8 z = {0}, int8[3, 2] wq = {1, 2, 3, 4, 5, 6}", ""),
        ("float[2] s, int8[2] z = {0, 0}, int8[3, 2] wq = {1, 2, 3, 4, 5, 6}", ""),
        ("float[2] s, int8[2] z = {0, 0}, float[3, 2] wq", "QuantizeLinear <axis = 1>"),
    ],
)
def test_a_quantised_weight_is_a_parameter_and_its_scale_is_none(scale, steps, tmp_path):
    text = f"""
<ir_version: 8, opset_import: ["" : 17]>
g (float[4, 3] x) => (float[4, 2] y) <{scale}>
{{ {f"q = {steps} (wq, s, z)" * bool(steps)}
  w = DequantizeLinear <axis = 1> ({"q" if steps else "wq"}, s, z)  y = MatMul(x, w) }}
"""
    found = read(text, tmp_path)
    tensors = [(t.name, t.shape, t.dtype) for t in found.net.tensors.values()]
    assert tensors == [("wq", (3, 2), "float32")]
    assert not found.notes


def test_a_slope_without_axes_is_a_parameter_of_one_element(tmp_path):
    text = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[4, 8] x) => (float[4, 8] y) <float slope = {0.25}>
{ y = PRelu(x, slope) }
"""
    assert imported(text, tmp_path).tensors["slope"].shape == (1,)


@pytest.mark.parametrize(
    "made",
    [
        "w = Mul(v, g)",
        "w = Concat <axis = 1> (v, g)",
        "n = ReduceL2 <axes = [1], keepdims = 1> (v)  u = Div(v, n)  w = Mul(u, g)",
    ],
)
def test_only_constants_that_no_parameter_is_made_of_count_as_not_trained(made, tmp_path):
    text = f"""
<ir_version: 8, opset_import: ["" : 13]>
g (float[4, 3] x, bool[4, 3] y) => (float[4, N] z, float[4, 3] s)
<float[3, 2] v, float[3, 2] g, float[4, 3] shift>
{{ {made}  z = MatMul(x, w)  s = Where(y, x, shift) }}
"""
    found = read(text.replace("N", "4" if "Concat" in made else "2"), tmp_path)
    assert list(found.net.tensors) == ["w"]
    assert [note.partition(",")[0] for note in found.notes] == [
        "1 constants count as not trained (first: shift)"
    ]


def test_attention_meets_past_keys_and_values_of_another_width(tmp_path):
    text = """
<ir_version: 10, opset_import: ["" : 23]>
g (float[2, 4, 8, 16] x, float[2, 4, 8, 16] k, float[2, 4, 8, 24] v,
   float[2, 4, 32, 16] past, float[2, 4, 32, 24] old) => (float[2, 4, 8, 24] y) <float[16, 16] w>
{ q = MatMul(x, w)  y, keys, values = Attention (q, k, v, , past, old) }
"""
    rows, keys = 2 * 4 * 8, 8 + 32
    assert imported(text, tmp_path).layers[-1].forward_flops == 2 * rows * keys * (16 + 24)


@pytest.mark.parametrize("equation", ["...i,ij->...j", "abi,ij->abj", "...i,ij", "a...i,...ij->aj"])
def test_axes_without_a_letter_are_multiplied_as_others(equation, tmp_path):
    text = f"""
<ir_version: 8, opset_import: ["" : 17]>
g (float[2, 4, 8] x) => (float y) <float[{"1, " * equation.startswith("a.")}8, 5] w>
{{ y = Einsum <equation = "{equation}"> (x, w) }}
"""
    assert imported(text, tmp_path).layers[0].forward_flops == 2 * (2 * 4) * 8 * 5


def test_a_deformed_convolution_and_peepholes_have_their_parameters(tmp_path):
    text = """
<ir_version: 8, opset_import: ["" : 19]>
g (float[3, 4, 9, 9] x, float[3, 18, 7, 7] offset) => (float[3, 6, 7, 7] y)
<float[6, 4, 3, 3] w, float[6] bias>
{ y = DeformConv (x, w, offset, bias) }
"""
    net = imported(text, tmp_path)
    assert list(net.tensors) == ["w", "bias"]
    assert net.layers[0].forward_flops == 2 * (3 * 6 * 7 * 7) * (4 * 3 * 3)
    peeping = (
        RECURRENT.replace("SHAPE", "128, 2").replace("N", "2").replace("b, , h", "b, , h, , p")
    )
    peeping = peeping.replace("[1, 64] b", "[1, 64] b, float[1, 24] p")
    assert list(imported(peeping, tmp_path).tensors) == ["w", "r", "b", "p"]
