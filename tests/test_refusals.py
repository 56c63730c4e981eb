"""What commands refuse: one sentence on stderr, exit status 2, no traceback and no output."""

import re

import pytest

from commsched.cli.main import main
from tests.support.rank_server import on_ranks

# Of each command: words that it refuses, and a part of what it says.
COMMANDS = {
    "bench codecs": (
        ("--numel 999999999999", "of memory; more than 1 h or 16 GB needs --force-size"),
        ("--repeats 1000000000", "--repeats 1000000000 would take about"),
        ("--codec fp17", "no codec named 'fp17'"),
        ("--numel 0", "--numel and --repeats must be at least 1, got 0, 10"),
    ),
    "models -o {folder}/net.json": (
        ("--transformer layers=2", "--transformer"),
        ("--transformer layers=2,hidden=8,heads=2,layers=2", "--transformer"),
        ("--transformer layers=2,hidden=8,heads=2,depth=1", "--transformer"),
        ("--transformer layers=0,hidden=8,heads=2", "--transformer"),
        ("--transformer layers=-1,hidden=8,heads=2", "--transformer"),
        ("--transformer layers=nan,hidden=8,heads=2", "--transformer"),
        ("--transformer layers=2,hidden=8,heads=0", "--transformer"),
        ("--transformer layers=100000,hidden=8,heads=2", "--transformer"),
        ("--transformer layers=1,hidden=99999999999,heads=1", "at most 2^53"),
        ("--transformer layers=9999999999999999999,hidden=8,heads=2", "--transformer"),
    ),
    "plan vgg16 --machine localhost -o {folder}/plan.json": (
        ("--scale 1e308", "a net has at most 2^53 elements; a scale of 1e+308 makes more of"),
        ("--stretch 1e308", "must be finite"),
        ("--jitter 1e308", "--jitter must be at least 0% and at most 1000%; got 1e308"),
        ("--jitter 1e308%", "--jitter must be at least 0% and at most 1000%; got 1e308%"),
        ("--set latency=2h", "latency must be finite and at least 0, at most 3600 s"),
        ("--set jitter=11", "jitter must be finite and at least 0, at most 10"),
    ),
    "plan lstm --scale 0.01 --machine p3.16xlarge --nodes 2 --lanes 2 -o {folder}/plan.json": (
        ("--lossless --method ring+fp16", "--lossless and --method ring+fp16 contradict"),
        (
            "--lossless --method ring+dense --later 3=all-gather+topk:0.01",
            "goes by all-gather+topk:0.01, which loses something",
        ),
        (
            "--lossless --strategy zero1 --param gather=fp16",
            "+fp16, which loses something; leave out --lossless",
        ),
        (
            "--lossless --strategy gpipe --param stages=2 --param messages=fp16",
            "messages between stages go by fp16",
        ),
        ("--method ring+dense --allow fp16", "--allow fp16: no --method uses it"),
        ("--method ring+dense --allow fp61", "--allow fp61: "),
        ("--method ring+fp16 --break-even", "--break-even compares with the best lossless plan"),
        ("--strategy auto --first 3=ring+dense", "--first is for strategy 'sync', got 'auto'"),
        ("--strategy zero1 --refresh 3", "--refresh is for strategy 'sync', got 'zero1'"),
        ("--first 2=ring+dense --first 5=ring+dense", "--first is given once"),
        ("--strategy zero1 --planner greedy", "--planner is not for strategy 'zero1'"),
        (
            "--strategy shadow --bucket 1MB",
            "--bucket is for gradients; strategy 'shadow' exchanges none: leave it out",
        ),
        (
            "--strategy shadow --allow fp16",
            "--allow is for gradients and messages; strategy 'shadow' exchanges neither",
        ),
        (
            "--method ring+dense --memory 6MB --later 3=all-gather+topk:0.1",
            "a memory limit of 6 MB per rank cannot hold",
        ),
    ),
    "price --machine localhost": (
        ("0", "NUMEL must be from 1 to 2^40 elements, got 0"),
        ("1.5", "NUMEL is a whole number of elements"),
        ("1 --top 0", "--top must be at least 1, got 0"),
        ("1 --break-even fp16", "--break-even needs a machine of several nodes"),
        ("1 --nodes 2 --break-even coo", "--break-even coo: the codec is lossless"),
        ("1 --nodes 2 --break-even fp61", "nearest: 'fp16'"),
        ("1 --density nan", "--density is a share, such as 5%; got 'nan'"),
        ("1 --density 0", "--density must be more than 0% and at most 100%; got 0"),
        ("1 --nodes 0", "nodes must be at least 1, got 0"),
        ("1 --compute -1", "--compute must be finite and at least 0 ms; got -1"),
        ("1 --compute nan", "--compute is a time, such as 28 us; got 'nan'"),
        ("1 --param wait=1", "--param needs --strategy, whose parameter it is"),
        ("1 --strategy daso --all", "--strategy prices what a planner chooses; leave out --all"),
        (
            "1 --lossless --method ring+fp16",
            "--method ring+fp16 loses something; leave it or --lossless out",
        ),
        (
            "1 --strategy samo --param pruned=2",
            "strategy 'samo': pruned cannot be '2'; allowed: 0 to 0.999",
        ),
    ),
    "testbed": (("run", "give mpiexec's words after --"),),
    "train --net mlp": (
        ("--bucket 1MB", "--bucket needs --method"),
        ("--plan p --bucket 1MB", "--bucket is for planning; --plan gives a plan"),
        ("--sweep x.json", "--sweep needs --plan"),
        ("--together", "--together needs --sweep"),
        ("--seeds 2", "--seeds needs --sweep"),
        ("--restarts 1", "--restarts needs --elastic"),
        ("--elastic 0 --checkpoint c", "--elastic must be at least 1, got 0"),
        ("--sweep x --plan p --log l", "--log is for one training"),
        ("--sweep x --plan p --resume", "--resume is for one training, --sweep for many"),
        ("--sweep x --plan p --elastic 2", "--elastic is for one training, --sweep for many"),
        ("--sweep x --plan p --seed 3", "--seed is for one training; --sweep counts seeds"),
        ("--sweep x --plan p --fold 1", "--fold is for one training; --sweep counts folds"),
        ("--sweep x --plan p --folds 6", "--folds must be from 1 to 5"),
        ("--sweep x --plan p --epochs 2", "give --steps with --sweep"),
    ),
    "validate -o {folder}/v": (
        ("--bed moon", "bed 'moon': expected HOSTSxRANKS-NETWORK such as 2x1-400mbit"),
        ("--bed 1x1-shared", "at least 2 ranks"),
        ("--bed 1x2-slow", "h1"),
        ("--bed 1x2-shared --net cnn:x", "net 'cnn:x': a generated net is KIND:SEED"),
        ("--bed 1x2-shared --method moon", "moon"),
        ("--bed 1x2-shared --compute dream", "--compute must be one of sleep, spin, train"),
        ("--steps 3", "--steps must be at least 4, got 3"),
        ("--seconds nan", "--seconds is a time, such as 28 us; got 'nan'"),
        ("--patience -1", "--patience must be finite and at least 0 s; got -1"),
    ),
}
# The same for commands under mpiexec, with the number of ranks.
ON_RANKS = {
    (2, "bench sparse"): (
        ("--support even", "no support named 'even'; known: uniform, zipf, text, top"),
        ("--support text --numel 99", "support 'text' needs at least "),
        ("--method ring+fp16", "method 'ring+fp16' is lossy; allowed are those that sum exact"),
        ("--method rign", "no method named 'rign'"),
        ("--density 0", "--density must be more than 0% and at most 100%; got 0"),
        ("--numel 0", "numel must be from 1 to 2**31 - 1, got 0"),
        ("--repeats 0", "repeats must be at least 1, got 0"),
    ),
    (2, "train"): (
        ("--net lstm", "no net to train named 'lstm'; known: autoencoder:128:16, bigrams:64:2000,"),
        ("--net mlp --batch 33", "must be a multiple of 2; nearest: 32"),
        ("--net mlp --batch 5000", "from 1 to the 1437 samples, got 5000"),
        ("--net mlp --optimizer lion", "no optimizer named 'lion'; known: sgd, "),
        ("--net mlp --strategy bsp", "no strategy named 'bsp'; known: "),
        ("--net mlp --rate -1", "--rate must be finite and more than 0; got -1"),
        ("--net mlp --fold 5", "--fold must be from 0 to 4, got 5"),
        ("--net mlp --figure x.png", "--figure needs --log"),
        ("--net mlp --log l --figure x.gif", "must end in .png, .svg or .pdf, got x.gif"),
        ("--net mlp --log no/l", "no/l: cannot be written there"),
        ("--net mlp --resume", "--resume needs --checkpoint"),
        ("--net mlp --method ring+topk", "cannot add packets"),
        ("--net mlp --plan no.json", "no.json: cannot be read"),
        ("--net mlp --plan p --method zen", "--method is for planning"),
        ("--net mlp --plan p --first 3=ring+dense", "--first is for planning"),
        ("--net mlp --plan p --set latency=9us", "--set is for planning"),
        ("--net mlp --first 2=ring+dense --first 5=ring+dense", "--first is given once"),
        (
            "--net mlp --strategy zero1 --later 2=ring+dense",
            "--later is for strategy 'sync', got 'zero1'",
        ),
        (
            "--net mlp --strategy gpipe --method all-gather+fft --theta 7 --schedule cosine",
            "--theta changes the method with --schedule cosine, which is for strategy 'sync'",
        ),
        (
            "--net mlp --first 2=ring+dense --method all-gather+fft --theta 7 --schedule cosine",
            "is for strategy 'sync' without --first; nearest: --schedule constant",
        ),
        ("--net mlp --strategy shadow --method zen", "--method is for gradients"),
        ("--net mlp --machine summit", "but 2 were started"),
        (
            "--net gpt:16:1:2:tied --strategy local",
            "of another layer; nearest: a net that shares none",
        ),
        ("--net mlp --param head=0.5 --strategy local", "trains with heads as large as the net's"),
        ("--net mlp --param head=0 --strategy local", "the plan has no auxiliary head for stage 0"),
        ("--net mlp --precision fp16 --strategy local", "--precision must be one of fp32"),
        (
            "--net mlp:8:3 --strategy 1f1b --batch 20",
            "by 16 microbatches, so it must be a multiple",
        ),
        ("--net mlp:8:3 --strategy gpipe --param stages=3", "3 stages do not divide 2 ranks"),
        ("--net mlp:8:3 --strategy samo --precision fp32", "--precision must be one of fp16"),
    ),
    (2, "sweep"): (("--net lstm --machine summit -o a.csv --jobs 2", "--jobs is for one process"),),
    (3, "train"): (
        (
            "--net words:4:50 --strategy local",
            "an auxiliary head reads 8 values of each sample, which are no means of 3 x 4; nearest",
        ),
    ),
}


def sentence_of(said: str) -> str:
    """The one sentence that a command says, perhaps on several ranks."""
    found = set(re.findall(r"^commsched: (?:rank \d+: )?(.+)$", said, re.MULTILINE))
    assert len(found) == 1, said
    assert "Traceback" not in said
    return found.pop()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_refuses_in_one_sentence_and_writes_nothing(command, tmp_path, capsys):
    for words, sentence in COMMANDS[command]:
        line = f"{command} {words}".format(folder=tmp_path)
        assert main(line.split()) == 2, line
        shown = capsys.readouterr()
        assert sentence in sentence_of(shown.err), line
        assert shown.err.count("\n") == 1, line
        assert shown.out == "", line
        assert list(tmp_path.iterdir()) == [], line


@pytest.mark.by_day(1)
@pytest.mark.parametrize(("ranks", "command"), ON_RANKS)
def test_ranks_refuse_together_in_one_sentence(ranks, command):
    for words, sentence in ON_RANKS[ranks, command]:
        ended = on_ranks(ranks, *command.split(), *words.split())
        assert ended.status == 2, words
        assert sentence in sentence_of(ended.output), words
