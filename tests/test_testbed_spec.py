"""What a testbed is asked for and what it lacks; what must cross its ports by the schedule."""

import os
import subprocess
import sys

import pytest

from commsched.cli.commands.testbed import _job, _used
from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.lab.testbed import bed as beds
from commsched.lab.testbed.hosts import cores
from commsched.lab.testbed.network import Traffic
from commsched.lab.testbed.proof import Crossing, crossing, missing, stated
from commsched.lab.testbed.spec import Spec, parse_rate, rate_text
from commsched.simulate.engine import simulate
from tests.support.jobs import ROOT
from tests.support.small_plans import graph, machine, plan


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("200mbit", 200e6),
        ("1Gbit", 1e9),
        ("1.5gbit", 1.5e9),
        ("500kbit", 5e5),
        ("1e3mbit", 1e9),
        ("25MB/s", 2e8),
        ("0.2 Gbit/s", 2e8),
    ],
)
def test_a_rate_is_read_as_bytes_per_second_and_written_back(text, rate):
    assert parse_rate(text) == rate / 8
    assert parse_rate(rate_text(rate / 8)) == rate / 8


@pytest.mark.parametrize(
    "text",
    [
        *("0mbit", "-5mbit", "fast", "200", "25mb/s", "nanmbit", "infgbit", "1kbit", "101gbit"),
        *("25MB", "h4=1mbit", "h0=", "=1mbit", "h0=h0=1mbit", "1mbit+2mbit", "", "+1mbit"),
        *("h1=1mbit+h1=1mbit", "٣mbit"),
    ],
)
def test_a_wrong_rate_is_one_sentence(text):
    with pytest.raises(CommschedError, match=r"^rate ") as refused:
        Spec.of(4, 2, text.split("+"))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("hosts", "lanes"), [(0, 2), (-1, 2), (65, 2), (4, 0), (4, 257)])
def test_a_wrong_count_is_one_sentence(hosts, lanes):
    with pytest.raises(CommschedError, match=r"^(hosts|lanes): must be 1 to "):
        Spec.of(hosts, lanes)


@pytest.mark.parametrize("name", ["", "A", "a.b", "a/b", "../x", "-a", "a" * 33, "a b", "é"])
def test_a_wrong_name_is_refused(name):
    with pytest.raises(CommschedError, match="a name has 1 to 32 of the characters"):
        beds.checked(name)


def test_hosts_and_the_slow_one_are_told_in_words():
    assert str(Spec.of(4, 2, ["200mbit", "h3=50mbit"])) == "4 hosts x 2 lanes, 200mbit, h3 50mbit"
    assert str(Spec.of(1, 1, ["1gbit"])) == "1 host x 1 lane, 1gbit"


def test_short_frames_without_tcp_are_no_data():
    address = Traffic(84, 42, 2, 1, 0)  # ARP asks and answers
    assert (address.data_sent, address.data_received) == (0, 0)


ACTIONS = [["up"], ["down"], ["status"], ["run", "--", "true"]]


@pytest.mark.parametrize("without", ["root", "iproute2"])
def test_what_is_lacking_is_one_sentence_and_exit_2(without):
    if without == "iproute2" and os.geteuid() != 0:
        pytest.skip("the missing rights come first")
    code = f"import os, sys; sys.path.insert(0, {str(ROOT)!r})\n"
    code += "import commsched.lab.testbed.bed, commsched.errors\n"
    code += "from commsched.lab.testbed import system\nsystem.SBIN = '/nowhere'\n"
    code += "from commsched.cli.commands import testbed\nfrom commsched.cli.main import main\n"
    if without == "root" and os.geteuid() == 0:
        code += "os.setuid(65534)\n"
    code += f"sys.exit(sum(main(['testbed', *action]) for action in {ACTIONS}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | ({"PATH": "/nowhere"} if without == "iproute2" else {}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2 * len(ACTIONS), done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == len(ACTIONS)
    needed = f"a testbed needs {'root' if without == 'root' else 'ip and tc'}"
    assert all(needed in line for line in lines)


def test_the_words_for_mpiexec_must_be_given(capsys):
    assert main(["testbed", "run"]) == 2
    assert "give mpiexec's words after --" in capsys.readouterr().err


def test_a_report_that_cannot_be_written_is_refused_before_the_job(tmp_path, capsys):
    words = ["--report", str(tmp_path / "no" / "report.json"), "--", "-n", "2", "true"]
    assert main(["testbed", "run", *words]) == 2
    assert "report.json: cannot be written there" in capsys.readouterr().err


@pytest.mark.parametrize("more", ["-o x.json --bogus", "--help", ""])
def test_words_of_a_job_are_looked_at_in_silence(more, capfd):
    assert _job(f"-n 4 commsched run {more}".split()) is None
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        ("-n 4 python train.py", 2),
        ("-n 4 python train.py -n 100", 2),
        ("--allow-run-as-root --mca a b -x HOME --n 3 train --np 100", 2),
        ("-np 1 first -n 8 : -env A 1 -l -np 2 second -n 8", 2),
        ("--bind-to=none -n 12 train", 4),
        ("-a-flag-of-another-version -n 3 train", 2),
        ("python train.py -n 2", 4),  # mpiexec fills what there is
    ],
)
def test_ranks_are_counted_in_the_words_of_mpiexec_not_of_its_programs(words, hosts):
    assert _used(words.split(), Spec.of(4, 2)) == hosts


@pytest.mark.parametrize(
    ("method", "share"),
    [
        ("ring+dense", 2 * 7 / 8),  # only the last lane of a host sends to the next host
        ("hierarchical+dense", 2 * 3 / 4),  # each lane its half of the bucket
        ("all-gather+dense", 7.0),  # as a ring: one link leaves the host, seven packets pass it
        ("native+dense", 1.0),  # at least every element once
    ],
)
def test_what_must_cross_follows_from_the_schedule(method, share):
    made = plan(graph([80_000]), machine(4, 2), [method])
    steps = 3
    predicted = simulate(made, steps, {}).timeline(8)
    spec = Spec.of(4, 2)
    for host in crossing(made, predicted, spec):
        assert host.received == pytest.approx(host.sent)
        # packets of an all-gather have headers of a few bytes
        assert host.sent == pytest.approx(steps * share * 320_000, rel=1e-3)
    alone = crossing(plan(graph([80_000]), machine(4, 1), [method]), predicted, Spec.of(1, 8))
    assert alone == (Crossing(0.0, 0.0),)


def test_bytes_that_are_missing_on_one_host_are_told():
    full = Traffic(1_066_000, 2_066_000, 1000, 1000, 0)
    assert full.data_sent == 1e6
    expected = stated(1e6, 3, 2)
    assert missing(expected, [full, full, Traffic(0, 0, 0, 0, 0)], ("h0", "h1", "h2")) == []
    half = full._replace(received=566_000)
    assert missing(expected, [full, half, full], ("h0", "h1", "h2")) == [
        "host h1 received 500 kB over its shaped port, expected were 1 MB: the rest went around"
        " the port"
    ]


@pytest.mark.parametrize(
    ("hosts", "usable", "shared"),
    [
        (2, [4, 5], [[4], [5]]),
        (2, [0, 1, 2, 3], [[0, 1], [2, 3]]),
        (4, [0, 1], [[0], [0], [1], [1]]),
        (3, [0, 1], [[0, 1]] * 3),
    ],
)
def test_hosts_have_cores_of_their_own_or_share_them_evenly(hosts, usable, shared):
    assert cores(hosts, usable) == shared
