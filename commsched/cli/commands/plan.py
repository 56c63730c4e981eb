"""`commsched plan`: decide how a net's gradients are exchanged on a machine."""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from commsched.cli import choice, machine, reasons, size
from commsched.cli import method_schedule as schedule
from commsched.cli.options import (
    COMPUTE,
    PARAM,
    Flag,
    ListOption,
    Option,
    command,
    json_file,
    pairs,
)
from commsched.cli.plan_facts import facts, summary
from commsched.cli.signals import Spare, one_interrupt, time_limit
from commsched.coding.registry import CODECS
from commsched.errors import CommschedError, TooLittleTime
from commsched.exchange import recorded_gradients as recorded
from commsched.net import file as net_file
from commsched.net.load import on_machine
from commsched.plan import file as plan_file
from commsched.plan.model import Param, Plan
from commsched.planner.auto.choose import LOST, ChosenStrategy, choose
from commsched.planner.auto.learning import cost_of, loses
from commsched.planner.break_even import RATES, BreakEven, break_even, check_break_even
from commsched.planner.families import NO_PLAN, Planned, plan_with_verdict
from commsched.planner.limits.error_budget import verdict as errors
from commsched.planner.limits.memory import fits, refusal
from commsched.planner.make_plan import by_planner
from commsched.planner.memory_advice import too_large
from commsched.planner.only_methods import not_used, only
from commsched.planner.reasons import verdict
from commsched.planner.registry import DEFAULT, FRAMES
from commsched.planner.request import Report, Request, forced
from commsched.planner.search.problem import BASELINES
from commsched.planner.validate_request import SEEDS, check
from commsched.program.registry import STRATEGIES
from commsched.progress import tell, working
from commsched.quantities import (
    DENSITY,
    ERROR,
    GIGABYTES,
    MEGABYTES,
    NUMBERS,
    PATIENCE,
    POSITIVE,
    SPREAD,
)
from commsched.text_table import table
from commsched.units import seconds

EXAMPLE = """example:
  commsched plan vgg16 --machine p3dn.24xlarge -o plan.json
  commsched plan resnet50 --machine p3.16xlarge --nodes 4 --allow fp16 --break-even -o plan.json
  commsched plan bert-base --machine p3.16xlarge --method ring+dense -o ring.json
  commsched plan gpt3-1.3b --machine summit --strategy samo --param microbatches=64 -o plan.json
  commsched plan bert-base --machine localhost --lanes 2 --scale 0.1 --allow fp16 -o plan.json
  commsched plan gpt3-1.3b --machine summit --ranks 96 --strategy auto -o plan.json
"""
HELP = "decide how a net's gradients are exchanged on a machine"
OPTIONS = (
    Option("net", "NET", "shipped net, or net file"),
    *machine.OPTIONS,
    Option("-o --output", "FILE", "plan file to write", json_file, required=True),
    Option("--jitter", "SIGMA", "log-normal spread of compute per rank and step", SPREAD),
    Option(
        "--strategy",
        "NAME",
        "synchronisation strategy; auto: the fastest of all, each with the parameters it suggests",
        default="sync",
    ),
    PARAM,
    Option(
        "--max-lost",
        "L",
        "largest measured cost in learning that a plan of auto, or a codec of --allow, may have, in"
        " points of accuracy or per cent of the held-out loss; default: 0.5 with auto, else any",
        NUMBERS,
    ),
    Flag(
        "--unmeasured",
        "with auto or --max-lost: allow plans and codecs whose cost in learning is not measured",
    ),
    Option("--planner", "NAME", "search algorithm", default=DEFAULT),
    Flag("--lossless", "reject all lossy codecs"),
    Option("--allow", "CODEC,...", "lossy codecs that the planner may use", default=""),
    Option(
        "--max-error",
        "E",
        "relative L2 error that a lossy codec may cause on a tensor in one step, measured with"
        " error feedback; biases, norms and small tensors stay dense; a run checks it",
        ERROR,
    ),
    Flag("--allow-small", "with --max-error: compress biases, norms and small tensors, too"),
    Option(
        "--gradients",
        "FILE.npz",
        "with --max-error: measure errors on gradients recorded by an Exchanger, tensor name ->"
        " (count, ...) floats, instead of random ones",
    ),
    ListOption("--method", "METHOD", "use no methods but these, such as ring+fp16"),
    ListOption(
        "--force",
        "TENSOR=METHOD",
        "put a tensor into its own bucket with this method; * and ? stand for parts of names, as"
        " in 'layer4.*=native+dense'",
    ),
    Option(
        "--bucket",
        "SIZE",
        "bucket size, as float32; default: the size with the shortest simulated step",
        MEGABYTES,
    ),
    Option("--scale", "F", "multiply bytes and compute seconds of the net", POSITIVE, 1.0),
    Option("--stretch", "F", "multiply compute seconds only", POSITIVE, 1.0),
    Option(
        "--density",
        "D",
        "share of non-zeros of every gradient, such as 1%%; default: as the net says",
        DENSITY,
    ),
    COMPUTE,
    *schedule.OPTIONS,
    Flag("--sum", "sum gradients instead of averaging them"),
    Option("--seed", "N", "seed of jitter and random gradients", int, 0),
    Option("--memory", "SIZE", "memory limit per rank", GIGABYTES),
    Option(
        "--time-limit",
        "TIME",
        "limit, kept within 20 %%, of the processor time of search and report; --break-even gets"
        " half of it; 0: the first plan; default: until no change helps;"
        " Ctrl-C writes the best plan so far (exit status 0, or 130 if there is none yet)",
        PATIENCE,
    ),
    Flag(
        "--break-even",
        "with --allow: also plan at many rates of a node's port, to find the rate from which"
        " compression saves less than 1%% of an iteration",
    ),
    Flag("--progress", "print each better plan on stderr during the search"),
    size.FORCE_SIZE,
    Flag("--explain", "print the reason of every launch"),
    Flag("--json", "print a summary of the plan as JSON"),
)


def request(args: argparse.Namespace) -> Request:
    """Read and check the request of the command line."""
    lossy = tuple(filter(None, args.allow.split(",")))
    if args.lossless and lossy:
        raise CommschedError(
            f"--lossless and --allow {args.allow} contradict each other; leave one out"
        )
    schedule.check(args, args.strategy)
    if args.allow_small and args.max_error is None:
        raise CommschedError("--allow-small needs --max-error; without it no tensor is spared")
    if args.gradients is not None and args.max_error is None:
        raise CommschedError("--gradients needs --max-error; without it no error is measured")
    if not 0 <= args.seed <= SEEDS:
        raise CommschedError(f"--seed must be from 0 to {SEEDS}, got {args.seed}")
    on = machine.load(args)
    if args.jitter is not None:
        on = replace(on, jitter=args.jitter)
    params: dict[str, Param] = dict(pairs(args.param, "--param"))
    net = net_file.load(args.net).scaled(args.scale, args.stretch)
    net = net if args.density is None else net.with_density(args.density)
    net = on_machine(net, on, args.compute)
    if args.strategy != choice.AUTO:
        if args.strategy not in STRATEGIES:
            raise STRATEGIES.missing(args.strategy, choice.AUTO)
        lossy = _learning(lossy, args.max_lost, args.unmeasured)
    wanted = Request(
        net=net,
        machine=on,
        strategy=args.strategy,
        params=params,
        lossy=lossy,
        messages=lossy,
        lossless=args.lossless,
        max_error=args.max_error,
        small=args.allow_small,
        recorded=None if args.gradients is None else recorded.read(args.gradients, net),
        force=forced(pairs(args.force, "--force", "TENSOR=METHOD"), net),
        bucket=args.bucket,
        memory=args.memory,
        mean=not args.sum,
        seed=args.seed,
        time_limit=args.time_limit,
        report=_progress if args.progress else None,
    )
    check(wanted)
    made = only(wanted, args.method)
    unused = not_used(args.method, lossy) if args.method else []
    if unused and args.strategy not in {choice.AUTO, *FRAMES}:  # these code other messages, too
        raise CommschedError(f"--allow {unused[0]}: no --method uses it; leave one of them out")
    return made


def _learning(lossy: tuple[str, ...], lost: float | None, unmeasured: bool) -> tuple[str, ...]:
    """Return the codecs that cost at most `lost` in learning; say what the others cost."""
    if lost is None:
        if unmeasured:
            raise CommschedError("--unmeasured needs --max-lost, or --strategy auto")
        return lossy
    found = []
    for codec in lossy:
        cost = cost_of(codec)
        if unmeasured if cost.lost is None else cost.lost <= lost:
            found.append(codec)
        else:
            tell(f"--max-lost {lost:g} leaves out {codec}, whose cost in learning is: {cost}")
    return tuple(found)


def _progress(what: str, iteration: float) -> None:
    """Print a better plan."""
    tell(f"{what}: iteration {seconds(iteration)}")


def _said(say: Callable[[str], None]) -> Report:
    return lambda what, iteration: say(f"{what}: {seconds(iteration)}")


def _searched(wanted: Request) -> Request:
    """Return the request whose search takes longest: for `auto`, the search of `sync`."""
    return replace(wanted, strategy="sync") if wanted.strategy == choice.AUTO else wanted


def _planned(
    args: argparse.Namespace, wanted: Request, say: Callable[[str], None]
) -> tuple[ChosenStrategy | None, Planned]:
    """Plan the strategy that was asked for, or choose one."""
    if args.strategy != choice.AUTO:
        return None, plan_with_verdict(wanted, args.planner)
    lost = LOST if args.max_lost is None else args.max_lost
    chosen = choose(wanted, args.planner, lost, args.unmeasured, say)
    return chosen, Planned(chosen.winner.plan, chosen.stopped)


@command(HELP, OPTIONS, EXAMPLE)
def plan(args: argparse.Namespace) -> None:
    """Plan, write, report; after Ctrl-C or the time limit the best plan so far."""
    spare = Spare(args.time_limit)
    with one_interrupt() as hold:
        share = args.time_limit and args.time_limit / (1 + args.break_even)
        with time_limit(share) as over:
            try:
                wanted = replace(request(args), time_limit=share)
                if args.break_even:
                    check_break_even(wanted)
                if not args.time_limit:  # a time limit bounds the search already
                    times = 1 + RATES * args.break_even
                    size.check(args, "the search", size.planning(_searched(wanted), times))
                with working("planning") as say:
                    wanted = replace(wanted, report=wanted.report or _said(say))
                    chosen, found = _planned(args, wanted, say)
                    hold()
            except KeyboardInterrupt:
                if over():
                    raise TooLittleTime(
                        f"no plan was found within --time-limit {seconds(args.time_limit)}; give"
                        " more time, or 0 for the first plan however long it takes"
                    ) from None
                raise KeyboardInterrupt(NO_PLAN) from None
        if found.interrupted:
            limited = over() or (chosen is not None and chosen.over)
            why = "the time is over" if limited else "interrupted"
            print(f"commsched: {why}; this is the best plan so far", file=sys.stderr)
            if limited and not all(launch.reason for launch in found.plan.launches):
                spare.left_out.append("reasons of the launches")
        made = schedule.added(found.plan, args)
        _check(args, wanted, made)
        plan_file.write(args.output, made)
    _report(args, wanted, made, chosen, spare)


def _check(args: argparse.Namespace, wanted: Request, made: Plan) -> None:
    """Refuse a plan that breaks an option of the user; say which option changed nothing."""
    if args.strategy != choice.AUTO:
        by_planner(made, args.planner)
    if args.bucket is not None and made.planner in BASELINES:
        tell(f"--bucket changes nothing: planner {made.planner!r} makes its own buckets")
    gradients = any(launch.payload == "gradient" for launch in made.launches)
    if args.bucket is not None and wanted.strategy in FRAMES and not gradients:
        raise CommschedError(
            f"--bucket is for gradients; strategy {made.strategy!r} exchanges none: leave it out"
        )
    messages = "messages" in STRATEGIES[made.strategy].parameters
    if args.allow and wanted.strategy in FRAMES and not (gradients or messages):
        raise CommschedError(
            f"--allow is for gradients and messages; strategy {made.strategy!r} exchanges neither:"
            " leave it out"
        )
    if wanted.memory is not None and not fits(wanted, made):
        raise refusal(wanted, made)
    for launch in made.launches if wanted.lossless else ():
        if loses(made, launch):
            raise CommschedError(
                f"--lossless: launch {launch.name!r} goes by {launch.method}, which loses"
                " something; leave out --lossless or what asks for this method"
            )
    codec = made.params.get("messages")
    if wanted.lossless and isinstance(codec, str) and not CODECS[codec].lossless:
        raise CommschedError(
            f"--lossless: messages between stages go by {codec}, which loses something; leave out"
            " --lossless or --param messages"
        )


def _report(
    args: argparse.Namespace,
    wanted: Request,
    made: Plan,
    chosen: ChosenStrategy | None,
    spare: Spare,
) -> None:
    """Print each part of the report until the time limit ends, then the names of the rest."""
    even = _even(wanted, spare) if args.break_even else None
    fits = too_large(made, look=False)
    if fits:
        fits = spare.made("a strategy that fits", lambda: too_large(made), fits)
    if args.json:
        told = summary(made)
        told["warnings"] += fits
        more: dict[str, Any] = {"break_even": even.data()} if even else {}
        more |= {"choice": choice.data(chosen)} if chosen else {}
        more |= {"left_out": spare.left_out} if spare.left_out else {}
        print(json.dumps({**told, "errors": errors(wanted), **more}, indent=1))
        return
    for line in choice.lines(chosen, args.explain) if chosen else ():
        print(line)
    for line in (*facts(made, every=args.explain), *errors(wanted)):
        print(line)
    if args.explain:
        print(table(reasons.HEADER, reasons.rows(made), reasons.RIGHT))
        none: list[str] = []
        for line in spare.made("notes on the launches", lambda: reasons.notes(made), none):
            print(line)
    else:
        for line in verdict.lines(made):
            print(line)
    for sentence in fits:
        print(f"warning: {sentence}")
    if even:
        print("\n".join(even.lines()))
    if spare.left_out:
        print(f"left out, as --time-limit was over: {', '.join(spare.left_out)}")
    print(f"written to {args.output}")


def _even(wanted: Request, spare: Spare) -> BreakEven | None:
    with working("looking for the break-even") as say:
        return spare.made("the break-even", lambda: break_even(wanted, say=say), None)
