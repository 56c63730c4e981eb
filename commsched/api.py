"""The Python surface: nets, machines, plans and predictions in a few lines, also in notebooks.

    import commsched as cs
    lab = cs.Machine("p3.16xlarge", nodes=4, nic="25 Gbit/s")
    dense, half = (cs.Plan.best("bert-base", lab, allow=codecs) for codecs in ("", "fp16"))
    print(cs.compare(dense, half))
    half.simulate().plot("fp16.png")

Names and files are given as strings or paths. Wrong input raises a `CommschedError`, a ValueError.
"""

import tempfile
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any

from commsched.errors import CommschedError
from commsched.files import head
from commsched.machine import file as machine_file
from commsched.machine import model as machine_model
from commsched.machine.change import changed
from commsched.machine.ports import network
from commsched.net import file as net_file
from commsched.net import graph as net_graph
from commsched.net.load import on_machine
from commsched.notebook import Compared, Picture, Shown, Study, picture_of
from commsched.plan import file as plan_file
from commsched.plan import model as plan_model
from commsched.planner.break_even import break_even as find_break_even
from commsched.planner.families import plan_with_verdict
from commsched.planner.make_plan import by_planner
from commsched.planner.memory_advice import too_large
from commsched.planner.only_methods import only
from commsched.planner.reasons import verdict
from commsched.planner.registry import DEFAULT
from commsched.planner.request import Request
from commsched.plot.draw import draw
from commsched.plot.style import Style
from commsched.program.read_plan import read_plan
from commsched.python_arguments import (
    arguments_of,
    names_of,
    number_of,
    python_words,
    whole_number,
)
from commsched.simulate.engine import simulate as predict
from commsched.simulate.report import lines, report
from commsched.simulate.step_count import usual_steps
from commsched.study.cells import product_of
from commsched.study.run import run as run_study
from commsched.study.workers import processes
from commsched.text_table import table
from commsched.timeline import file as timeline_file
from commsched.timeline.compare import compare as compared
from commsched.timeline.compare import swapped
from commsched.timeline.model import Timeline
from commsched.timeline.report import (
    comparison_data,
    comparison_table,
    rivals_data,
    rivals_table,
)
from commsched.timeline.spread import are_rivals, rivals
from commsched.units import count, nbytes, seconds

RANKS = 64  # ranks whose spans a predicted timeline has by default
PLURALS = {
    "planners": "planner",
    "methods": "method",
    "strategies": "strategy",
    "bandwidths": "bandwidth",
    "densities": "density",
}
GIVEN = ("net", "machine", "lossy", "messages", "coded")  # fields that other arguments set
COLUMNS = ("plan", "iteration", "speed-up", "exposed", "sent per rank", "memory", "methods")


class Net(Shown):
    """A net: a shipped one by its name, or a net file.

    `scale` multiplies bytes and compute seconds, `stretch` the seconds only; `density` is the share
    of non-zeros of every gradient, in place of the net's own.
    """

    def __init__(
        self,
        name: str | Path,
        *,
        scale: float | str = 1.0,
        stretch: float | str = 1.0,
        density: float | str | None = None,
    ) -> None:
        factors = number_of("scale", scale), number_of("stretch", stretch)
        self.model: net_graph.Net = net_file.load(str(name)).scaled(*factors)
        if density is not None:
            self.model = self.model.with_density(number_of("density", density))

    def write(self, path: str | Path) -> None:
        """Write a net file."""
        net_file.write(path, self.model)

    def __repr__(self) -> str:
        net = self.model
        return (
            f"<Net {net.name}: {len(net.layers)} layers, {len(net.tensors)} tensors,"
            f" {nbytes(net.nbytes)} of gradients>"
        )


class Machine(Shown):
    """A machine: a shipped one by its name, or a machine file.

    `changes` are those of `--set`: nic="25 Gbit/s", latency="9 us", gpu="a100".
    """

    @python_words()
    def __init__(
        self,
        name: str | Path,
        *,
        nodes: int | None = None,
        lanes: int | None = None,
        **changes: object,
    ) -> None:
        words = [f"{key}={value}" for key, value in changes.items()]
        found = changed(machine_file.load(str(name)), words)
        for key, number in (("nodes", nodes), ("lanes", lanes)):
            if number is not None and not isinstance(number, Integral):
                raise CommschedError(f"{key} is a whole number from 1 on, got {number!r}")
        if nodes is not None or lanes is not None:
            found = machine_model.resized(found, nodes, lanes)
        self.model: machine_model.Machine = found

    def write(self, path: str | Path) -> None:
        """Write a machine file."""
        machine_file.write(path, self.model)

    def __str__(self) -> str:
        return "\n".join([repr(self), *network(self.model)])

    def __repr__(self) -> str:
        machine = self.model
        lanes = machine.size // machine.nodes
        return f"<Machine {machine.name}: {machine.nodes} x {lanes} ranks, {machine.device.name}>"


class Plan(Shown):
    """A plan: how a net's gradients are exchanged on a machine."""

    def __init__(self, model: plan_model.Plan) -> None:
        self.model = model

    @classmethod
    @python_words()
    def best(
        cls,
        net: "Net | str | Path",
        machine: "Machine | str | Path",
        *,
        allow: str | Sequence[str] = (),
        method: str | Sequence[str] = (),
        planner: str = DEFAULT,
        compute: str = "",
        **request: Any,
    ) -> "Plan":
        """Plan as `commsched plan` does.

        allow: lossy codecs, as "fp16,topk:1%" or a list; method: the only methods that may be used;
        `request`: other fields of planner.request.Request, such as strategy, memory="16GB" or
        time_limit="5 s": texts as on the command line, numbers in bytes and seconds.
        """
        wanted = _request(net, machine, allow, method, compute, **request)
        return cls(by_planner(plan_with_verdict(wanted, str(planner)).plan, str(planner)))

    @classmethod
    def read(cls, path: str | Path) -> "Plan":
        """Read a plan file."""
        return cls(read_plan(Path(path)))

    def write(self, path: str | Path) -> None:
        """Write a plan file, which `commsched run` executes."""
        plan_file.write(path, self.model)

    @python_words()
    def simulate(self, steps: int | None = None) -> "Prediction":
        """Predict `steps` steps, by default 10 or two cycles; the first is not counted."""
        steps = steps if steps is not None else usual_steps(self.model)
        return Prediction(self, whole_number("steps", steps, 2))

    @cached_property
    def prediction(self) -> "Prediction":
        """Return the prediction for the plan's usual number of steps."""
        return self.simulate()

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the methods of the plan's launches, each once."""
        return tuple(dict.fromkeys(launch.method for launch in self.model.launches))

    @property
    def verdict(self) -> list[str]:
        """Return a line for each compared family of methods, and whether to compress."""
        return [*verdict.lines(self.model), *(f"warning: {line}" for line in too_large(self.model))]

    def __str__(self) -> str:
        return "\n".join([repr(self), *self.verdict])

    def __repr__(self) -> str:
        plan = self.model
        told = f", iteration {seconds(plan.iteration)}" if plan.iteration else ""
        return (
            f"<Plan {plan.hash[:12]}: {plan.net.name} on {plan.machine.name}, {plan.strategy},"
            f" {count(len(plan.launches), 'launch')}{told}>"
        )


class Prediction(Shown):
    """The simulator's prediction for a plan; `data` has its numbers in seconds and bytes."""

    def __init__(self, plan: Plan, steps: int) -> None:
        self.plan = plan
        self._found = predict(plan.model, steps + 1)  # one more step ends the last
        self.data: dict[str, Any] = report(self._found)

    @property
    def iteration(self) -> float:
        """Return the median seconds of an iteration."""
        return float(self.data["iteration_median_seconds"])

    @property
    def exposed(self) -> float:
        """Return the median seconds of communication in a step that compute does not hide."""
        return float(self.data["exposed_median_seconds"])

    def timeline(self, ranks: int = RANKS) -> Timeline:
        """Return the spans of the first ranks."""
        return self._found.timeline(whole_number("ranks", ranks, 1))

    def write(self, path: str | Path, ranks: int = RANKS) -> None:
        """Write a timeline file, which Perfetto opens."""
        timeline_file.write(path, self.timeline(ranks))

    @python_words()
    def plot(
        self, path: str | Path | None = None, step: int | None = None, **style: Any
    ) -> "Picture":
        """Draw a step as .png, .svg or .pdf, or all as an .html page; a notebook shows it.

        `style`: fields of plot.style.Style, such as width="8cm", font=7 (pt) or title="".
        """
        how = Style(**arguments_of(Style, "a picture", style))
        return _drawn(self.timeline(), path, step, how)

    def __str__(self) -> str:
        return "\n".join(lines(self.data))

    def __repr__(self) -> str:
        return f"<Prediction: iteration {seconds(self.iteration)}, exposed {seconds(self.exposed)}>"


@python_words()
def sweep(
    nets: "Sequence[Net | str | Path] | Net | str | Path",
    machines: "Sequence[Machine | str | Path] | Machine | str | Path",
    *,
    path: str | Path | None = None,
    jobs: int = 1,
    executor: Executor | None = None,
    **lists: Any,
) -> Study:
    """Plan the product of lists, as `commsched sweep` does.

    `lists` are its options, such as planners=["ddp-25mb", "best"], between=["10 Gbit/s"],
    ranks=[32, 64], allow=["-", "fp16"] or simulate=True. `path`: the table; a sweep continues an
    interrupted table. `executor`: plans the cells, instead of `jobs` processes.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        given = {PLURALS.get(key, key): value for key, value in lists.items()}
        given |= {"net": _files(nets, folder), "machine": _files(machines, folder)}
        cells = product_of(given, "sweep")
        if executor is None and jobs != 1:
            executor = stack.enter_context(processes(jobs))
        done = run_study(cells, Path(path or Path(folder, "sweep.csv")), executor, jobs)
    return Study(done.rows, None if path is None else Path(path))


def _files(several: Any, folder: str) -> list[str]:
    """Return names or paths; write `Net` and `Machine` objects to files in a folder."""
    found = []
    for one in several if isinstance(several, list | tuple) else [several]:
        if isinstance(one, Net | Machine):
            word = f"{one.model.name.replace('/', ' per ')}.json"  # several may have this name
            one.write(name := Path(tempfile.mkdtemp(dir=folder), word))
            one = name
        found.append(str(one))
    return found


@python_words()
def break_even(
    net: Net | str | Path,
    machine: Machine | str | Path,
    *,
    allow: str | Sequence[str],
    method: str | Sequence[str] = (),
    gain: float | str = 0.01,
    compute: str = "",
    **request: Any,
) -> Compared:
    """Find the rate of a node's port from which the codecs save less than `gain` of an iteration.

    Source: plans at many rates, as `commsched plan --break-even` makes them.
    """
    least = number_of("gain", gain)
    found = find_break_even(_request(net, machine, allow, method, compute, **request), least)
    return Compared("\n".join(found.lines()), found.data())


def _request(
    net: Net | str | Path,
    machine: Machine | str | Path,
    allow: str | Sequence[str],
    method: str | Sequence[str],
    compute: str,
    **more: Any,
) -> Request:
    net = net if isinstance(net, Net) else Net(net)
    on = (machine if isinstance(machine, Machine) else Machine(machine)).model
    model = on_machine(net.model, on, compute)
    more = arguments_of(Request, "a plan", more, GIVEN)
    lossy = names_of(allow)
    request = Request(net=model, machine=on, lossy=lossy, messages=lossy, **more)
    return only(request, names_of(method))


@python_words()
def compare(*what: "Plan | Prediction | str | Path") -> Compared:
    """Compare plans with each other, or a prediction with a measured timeline.

    Plans, predictions and plan files: a table with a row each; the first is the basis of the
    speed-ups. A prediction, or its file, and a file of `commsched run`: why they differ. Two
    files of predictions, or one and a prediction: which plan is faster.
    """
    if len(what) < 2:
        raise CommschedError(f"compare needs two or more things, got {len(what)}")
    for each in what:
        if not isinstance(each, Plan | Prediction | str | Path):
            raise CommschedError(f"compare takes plans, predictions and files, got {each!r}")
    files = [Path(each) for each in what if isinstance(each, str | Path)]
    mark = f'"{plan_model.Plan.FORMAT}"'.encode()
    plans = any(isinstance(x, Plan) for x in what) or any(mark in head(x, 4096) for x in files)
    if len(what) == 2 and files and not plans:
        return _timelines_compared(*(_timeline(each) for each in what))
    found = [_prediction(each) for each in what]
    first = found[0].iteration
    rows = [
        (
            f"{one.plan.model.hash[:12]} {one.plan.model.planner}",
            seconds(one.iteration),
            f"{first / one.iteration:.3f}" if one.iteration else "-",
            seconds(one.exposed),
            nbytes(one.data["sent_median_bytes"]),
            nbytes(one.data["memory_bytes"]["total"]),
            ", ".join(one.plan.methods),
        )
        for one in found
    ]
    return Compared(table(COLUMNS, rows, range(1, 6)), [one.data for one in found])


def _timelines_compared(a: Timeline, b: Timeline) -> Compared:
    if are_rivals(a, b):
        both = rivals(a, b)
        return Compared(rivals_table(both), rivals_data(both))
    predicted, measured = (b, a) if swapped(a, b) else (a, b)
    found = compared(predicted, measured)
    return Compared(comparison_table(found, 12), comparison_data(found))


def _timeline(what: "Plan | Prediction | str | Path") -> Timeline:
    if isinstance(what, Prediction):
        return what.timeline()
    assert not isinstance(what, Plan)
    return timeline_file.read(what)


def _prediction(what: "Plan | Prediction | str | Path") -> Prediction:
    if isinstance(what, Prediction):
        return what
    return (what if isinstance(what, Plan) else Plan.read(what)).prediction


def _drawn(t: Timeline, path: str | Path | None, step: int | None, style: Style) -> Picture:
    return picture_of(path, lambda made: draw([t], made, step, style=style))
