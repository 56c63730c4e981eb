"""`commsched import` of torch.profiler traces, written by hand and by examples/torch_profile.py."""

import gzip
import json
from pathlib import Path

import pytest

from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.interchange import content
from commsched.interchange.kineto_timeline import read_pair
from commsched.interchange.registry import Options, import_file
from commsched.net import file as net_file
from tests.support.jobs import ROOT

RECORDED = ROOT / "traces" / "imported"


class Trace:
    """Events of two layers on a GPU, whose kernels run behind the host; all times in us."""

    def __init__(self):
        self.events, self.number = [], 0

    def add(self, cat, name, ts, dur, tid=1, **args):
        names = {k.replace("_", " "): v for k, v in args.items()}
        row = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur}
        self.events.append(row | {"args": names})

    def kernel(self, given, start, dur, name="gemm", tid=1, **args):
        self.number += 1
        self.add("cuda_runtime", "cudaLaunchKernel", given, 1, tid, correlation=self.number)
        self.add("kernel", name, start, dur, 7, correlation=self.number, **args)

    def step(self, at, number, shapes=True, sent=True):
        """Forward 10 + 20 us, the loss 5, backward 40 + 50, an all-reduce beside the last."""
        seen = (
            (lambda *dims: {"Input_Dims": list(dims), "Input_type": ["float"]})
            if shapes
            else (lambda *dims: {})
        )
        self.add("user_annotation", f"ProfilerStep#{number}", at, 1000)
        for k, (begin, seconds) in enumerate([(100, 10), (110, 20)]):
            now, made = at + 10 + 10 * k, 100 * number + 2 * k
            self.add("cpu_op", "aten::linear", now, 8, Sequence_number=made)
            self.add("cpu_op", "aten::t", now + 1, 1, Sequence_number=made)
            self.add("cpu_op", "aten::addmm", now + 3, 4, Sequence_number=made + 1)
            self.kernel(now + 4, at + begin, seconds)
        self.add("cpu_op", "aten::mse_loss", at + 40, 5, Sequence_number=100 * number + 4)
        self.kernel(at + 41, at + 130, 5)
        node = "autograd::engine::evaluate_function: "
        gradient = "torch::autograd::AccumulateGrad"
        for k, (begin, seconds) in enumerate([(135, 40), (175, 50)]):
            now, made = at + 60 + 40 * k, 100 * number + 2 - 2 * k
            self.add("cpu_op", node + "AddmmBackward0", now, 10, 2, Sequence_number=made + 1)
            self.kernel(now + 1, at + begin, seconds, tid=2)
            self.add("cpu_op", node + gradient, now + 11, 2, 2)
            self.add("cpu_op", gradient, now + 12, 1, 2, **seen([8 - k]))
            self.add("cpu_op", node + "TBackward0", now + 14, 2, 2, Sequence_number=made)
            self.add("cpu_op", node + gradient, now + 17, 15, 2)
            self.add("cpu_op", gradient, now + 18, 1, 2, **seen([8 - k, 4]))
            what = {"In_msg_nelems": 100 + k, "dtype": "Float"} if sent else {}
            name = "ncclKernel_AllReduce_RING_LL_Sum_float(x)"
            self.kernel(now + 20, at + begin + seconds, 30, name, 2, **what)
        self.add("user_annotation", "Optimizer.step#SGD.step", at + 200, 10)
        self.kernel(at + 202, at + 260, 7)

    def file(self, path, **more):
        device = [{"id": 0, "name": "Tesla V100-SXM2-16GB"}]
        data = {"schemaVersion": 1, "deviceProperties": device, "traceEvents": self.events}
        path.write_bytes(gzip.compress(json.dumps(data | more).encode()))
        return path


def imported(path, **options):
    return import_file(content.read(path), Options(name="n", **options))


def test_a_layer_takes_its_kernels_and_collectives_are_taken_apart(tmp_path):
    trace = Trace()
    for step in range(3):
        trace.step(1000 * step, step)
    found = imported(trace.file(tmp_path / "trace.json.gz"), batch=16)
    net = found.net
    assert [layer.name for layer in net.layers] == ["linear.0", "linear.1"]
    assert [t.shape for t in net.tensors.values()] == [(7,), (7, 4), (8,), (8, 4)]
    spent = [(layer.forward * 1e6, layer.backward * 1e6) for layer in net.layers]
    assert spent == [pytest.approx((10, 50)), pytest.approx((25, 40))]  # 20 and the loss
    assert net.optimizer == pytest.approx(7e-6)
    assert (net.batch, net.measured.device) == (16, "Tesla V100-SXM2-16GB")
    assert net.measured.bandwidth == 900e9  # of the shipped device of this name
    said = found.data["collectives"]["ncclKernel_AllReduce_RING_LL_Sum_float"]
    assert said == {"per_step": 2.0, "bytes": 4.0 * 201}
    assert found.data["communication_seconds"] == pytest.approx(60e-6)
    assert found.data["overlap"] == pytest.approx(0.5)  # the first of the two
    assert net.source.endswith("collectives take 60 us a step, 50% of it while the rank computes")


def test_an_optimizer_that_calls_both_passes_has_the_time_after_them(tmp_path):
    trace = Trace()
    for step in range(3):
        trace.step(1000 * step, step)
    want = imported(trace.file(tmp_path / "trace.json.gz")).net
    for event in trace.events:  # as optimizer.step(closure) is recorded
        if event["name"].startswith("Optimizer.step"):
            event |= {"ts": event["ts"] - 195, "dur": event["dur"] + 195}
    assert imported(trace.file(tmp_path / "trace.json.gz")).net == want


@pytest.mark.parametrize(("dtype", "width"), [("double", 8), ("c10::BFloat16", 2), ("float", 4)])
def test_a_collective_of_the_host_has_the_bytes_of_its_type(dtype, width, tmp_path):
    trace = Trace()
    trace.step(0, 0, sent=False)
    trace.events = [event for event in trace.events if "nccl" not in event["name"]]
    seen = {"Input_Dims": [[7, 3]], "Input_type": [dtype]}
    trace.add("user_annotation", "gloo:all_reduce", 200, 5, 3, **seen)
    found = imported(trace.file(tmp_path / "trace.json.gz"))
    assert found.data["collectives"]["gloo:all_reduce"]["bytes"] == 21 * width


def test_sizes_of_axes_are_refused_where_no_axis_lacks_one_and_when_given_twice(tmp_path):
    trace = Trace()
    trace.step(0, 0)
    path = trace.file(tmp_path / "trace.json.gz")
    said = "and a Chrome trace of torch.profiler has none; leave the option out"
    assert said in refused(path, tmp_path, "--size", "n=3")
    said = "--size n is given twice; give it once"
    assert said in refused(path, tmp_path, "--size", "n=3", "--size", "n=4")


def test_without_shapes_a_layer_is_a_bucket_and_without_either_it_is_refused(tmp_path):
    trace = Trace()
    trace.step(0, 0, shapes=False)
    net = imported(trace.file(tmp_path / "trace.json.gz")).net
    assert [t.shape for t in net.tensors.values()] == [(101,), (100,)]
    assert sum(layer.forward for layer in net.layers) == pytest.approx(35e-6)
    assert sum(layer.backward for layer in net.layers) == pytest.approx(90e-6)
    trace = Trace()
    trace.step(0, 0, shapes=False, sent=False)
    path = trace.file(tmp_path / "trace.json.gz")
    assert "record with torch.profiler.profile(record_shapes=True" in refused(path, tmp_path)


def refused(path, folder, *options):
    """The one sentence that the command says."""
    import contextlib
    import io

    with contextlib.redirect_stderr(io.StringIO()) as said:
        assert main(["import", str(path), "-o", str(folder / "net.json"), *options]) == 2
    text = said.getvalue()
    assert text.startswith("commsched: ")
    assert len(text.splitlines()) == 1, text
    return text


def test_a_recorded_gpt_has_the_shapes_of_its_parameters(tmp_path):
    net = imported(RECORDED / "gpt-modules.json.gz").net
    block = [(64,), (64,), (192,), (192, 64), (64,), (64, 64), (64,), (64,)]
    block += [(256,), (256, 64), (64,), (64, 256)]
    want = [(256, 64), (32, 64), *block, *block, (256,), (256, 64)]
    assert sorted(t.shape for t in net.tensors.values()) == sorted(want)
    names = [layer.name for layer in net.layers]
    assert names[:2] in (["Embedding_0", "Gpt_0"], ["Embedding_0", "Embedding_1"])
    assert names[2:4] == ["LayerNorm_0", "Linear_0"]
    assert names[-1] == "Linear_8"
    assert net.batch == 8
    assert net.measured.device == "host"
    assert all(layer.backward > 0 for layer in net.layers)
    # 8 x 32 positions through a matrix of 256 x 64, and twice that back
    assert (net.layers[-1].forward_flops, net.layers[-1].backward_flops) == (2**23, 2**24)
    assert net_file.from_data(net_file.to_data(net), "net") == net


def test_a_trace_is_planned_simulated_and_compared(tmp_path, capsys):
    trace, net = RECORDED / "gpt-ddp.json.gz", tmp_path / "net.json"
    plan, predicted = str(tmp_path / "plan.json"), str(tmp_path / "predicted.json")
    assert main(["import", str(trace), "-o", str(net), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    reduced = said["collectives"]["gloo:all_reduce"]
    assert (reduced["per_step"], reduced["bytes"]) == (3.0, 4.0 * net_file.read(net).numel)
    on = ("--machine", "localhost", "--lanes", "2", "--planner", "ddp-25mb")
    assert main(["plan", str(net), *on, "-o", plan]) == 0
    assert main(["simulate", plan, "-o", predicted]) == 0
    capsys.readouterr()
    assert main(["compare", predicted, str(trace), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in found["operations"]}
    spent = rows["backward/linear.3"]
    assert spent["predicted_seconds"] == pytest.approx(spent["measured_seconds"], rel=0.5)
    assert main(["compare", str(trace), predicted]) == 0  # in any order
    assert "measured by torch.profiler on rank 0 alone" in capsys.readouterr().out


def test_what_cannot_be_a_trace_is_one_sentence(tmp_path, monkeypatch):
    path = tmp_path / "trace.json.gz"
    whole = (RECORDED / "gpt-ddp.json.gz").read_bytes()
    path.write_bytes(whole[:-1000])
    assert "a damaged gzip file" in refused(path, tmp_path)
    path.write_bytes(gzip.decompress(whole)[:100000])
    assert "not a trace of torch.profiler: input data was truncated" in refused(path, tmp_path)
    path.write_bytes(b"")
    assert "the file is empty" in refused(path, tmp_path)
    path.write_bytes(b"\x00\x01")
    assert "not a file of a known format" in refused(path, tmp_path)
    path.write_bytes(b'{"traceEvents": ' + b"[" * 100000)
    assert "not a trace of torch.profiler" in refused(path, tmp_path)
    for wrong in ('{"ts": 1e308}', '{"ts": 1, "dur": -1}', '{"ts": 0, "tid": []}'):
        event = json.loads(wrong) | {"ph": "X", "cat": "cpu_op", "name": "x"}
        first = {"ph": "X", "cat": "cpu_op", "name": "x", "tid": 1}
        path.write_text(json.dumps({"traceEvents": [first, event]}))
        assert "event 'x'" in refused(path, tmp_path)
    path.write_text(json.dumps({"traceEvents": [{"ph": "X", "cat": "kernel", "name": "x"}]}))
    assert "the trace has no operation of PyTorch" in refused(path, tmp_path)
    assert "no format named 'kinetto'; known: " in refused(path, tmp_path, "--format", "kinetto")
    monkeypatch.setattr(content, "MAX_BYTES", 10**6)
    path.write_bytes(gzip.compress(bytes(10**7)))  # a bomb
    assert "more than 1000000 bytes unpacked; record fewer steps" in refused(path, tmp_path)


def predicted_on_two(tmp_path, trace):
    """Plan the net of a trace for 2 ranks; return the file of its prediction."""
    net, plan, predicted = (tmp_path / f"{name}.json" for name in ("net", "plan", "predicted"))
    net_file.write(net, imported(trace, batch=4).net)
    on = ("--machine", "localhost", "--lanes", "2", "--planner", "ddp-25mb")
    assert main(["plan", str(net), *on, "-o", str(plan)]) == 0
    assert main(["simulate", str(plan), "-o", str(predicted)]) == 0
    return predicted


def test_a_trace_of_other_layers_is_not_compared(tmp_path):
    whole, part = Trace(), Trace()
    whole.step(0, 0)
    part.step(0, 0)
    part.events = [e for e in part.events if e["tid"] != 2 or e["ts"] < 100]  # no 2nd backward
    whole, part = whole.file(tmp_path / "whole.gz"), part.file(tmp_path / "part.gz")
    for known, other, which in ((whole, part, "trace"), (part, whole, "prediction")):
        with pytest.raises(CommschedError, match=f"only the {which} has layer 'linear'; plan"):
            read_pair(predicted_on_two(tmp_path, known), other)


def test_a_trace_of_one_process_is_not_taken_for_that_of_a_rank(tmp_path):
    trace = Trace()
    trace.step(0, 0)
    trace.step(1000, 1)
    alone = "measured by torch.profiler in one process that exchanges nothing"
    for events, said in (
        (trace.events, "measured by torch.profiler on rank 0 alone"),
        ([e for e in trace.events if "nccl" not in e["name"]], alone),
    ):
        trace.events = events
        path = trace.file(tmp_path / "trace.gz")
        assert read_pair(predicted_on_two(tmp_path, path), path)[1].warnings == (said,)


def test_two_traces_are_not_compared():
    path = RECORDED / "gpt-ddp.json.gz"
    with pytest.raises(CommschedError, match="both traces of another program"):
        read_pair(path, path)


def test_a_step_of_two_backward_passes_is_refused(tmp_path):
    trace = Trace()
    trace.step(0, 0)
    trace.step(300, 1)
    trace.events = [e for e in trace.events if not e["name"].startswith("ProfilerStep")]
    path = trace.file(Path(tmp_path) / "trace.json.gz")
    assert "several forward and backward passes" in refused(path, tmp_path)


def test_a_trace_of_a_gpu_without_its_kernels_is_refused(tmp_path):
    trace = Trace()
    trace.step(0, 0)
    trace.events = [e for e in trace.events if e["cat"] in ("cpu_op", "user_annotation")]
    path = trace.file(tmp_path / "trace.json.gz")
    assert "no kernels are recorded; give torch.profiler activities=" in refused(path, tmp_path)


def test_a_trace_of_two_processes_is_refused(tmp_path):
    trace = Trace()
    trace.step(0, 1)
    trace.events += [event | {"pid": 2, "ts": event["ts"] + 37} for event in trace.events]
    path = trace.file(tmp_path / "trace.json.gz")
    assert "the trace is of 2 processes (their 'pid'); import the trace" in refused(path, tmp_path)


def test_the_batch_of_a_net_with_a_frozen_embedding_is_not_its_vocabulary(tmp_path):
    trace = Trace()
    trace.step(0, 1)
    indices = {"Input_Dims": [[5000, 16], [6, 5]], "Input_type": ["float", "long int"]}
    trace.add("cpu_op", "aten::embedding", 5, 3, **indices)
    assert imported(trace.file(tmp_path / "trace.json.gz")).net.batch == 6


ATTENTION = "scaled_dot_product_attention"
CONV = ("conv1d", [6, 2, 9], [8, 2, 3])
STATE, WEIGHTS = [[1, 4, 9], [1, 4, 9]], [[36, 16], [36, 9]]


@pytest.mark.parametrize(
    ("batch", "note", "operators"),
    [
        (8, "", [("linear", [8, 4], [7, 4]), ("addmm", [7], [8, 4], [4, 7])]),  # as a gradient
        (4, "", [("lstm", [4, 11, 16], STATE, WEIGHTS), ("linear", [4, 9], [8, 9])]),
        (4, "", [("gru", [11, 4, 16], [1, 4, 9], WEIGHTS)]),
        (4, "", [("lstm", [30, 16], [11], STATE, WEIGHTS)]),  # a packed sequence
        (4, "", [("linear", [11, 4, 16], [48, 16]), (ATTENTION, [4, 2, 11, 8])]),
        (4, "", [("embedding", [99, 16], [11, 4]), ("gru", [11, 4, 16], [1, 4, 9], WEIGHTS)]),
        (6, "", [("embedding", [99, 16], [6, 5]), ("conv1d", [30, 2, 9], [8, 2, 3]), CONV]),
        (6, "the batch, 6, is the first axis of an embedding", [("embedding", [99, 16], [6, 5])]),
        (0, "the trace does not tell the batch", [("linear", [11, 4, 16], [48, 16])]),
        (0, "the trace does not tell the batch", [("linear", [0, 16], [48, 16])]),
        (0, "the trace does not tell the batch", []),
    ],
)
def test_the_batch_is_what_operators_say_or_is_asked_for(batch, note, operators, tmp_path):
    trace = Trace()
    trace.step(0, 1)
    for place, (name, *dims) in enumerate(operators):
        trace.add("cpu_op", f"aten::{name}", 2 + place, 1, Input_Dims=dims)
    found = imported(trace.file(tmp_path / "trace.json.gz"))
    assert (found.net.batch, found.net.measured.batch) == (batch or 1, batch)
    asked = [said for said in found.notes if "--batch" in said]
    assert len(asked) == bool(note)
    assert all(said.startswith(note) for said in asked)
