"""What codecs leave of a convolutional net's real messages: bits by variance against equal bits."""

from collections import defaultdict
from dataclasses import replace

import numpy as np

from commsched.coding.registry import CODECS
from commsched.run.engine.coded_mail import CodedMail
from commsched.train.in_process import InProcessTraining
from commsched.train.registry import DATA, NETS
from commsched.train.workers.pipeline import PipelineWorker
from tests.support.learning_pipelines import plan_of, settings

NET, STEPS = "cnn:8", 60
EQUAL, FRESH, OLD = "quant:4:256", "adaqp:4", "adaqp:4:50"


class Watched(CodedMail):
    """Notes the error of each codec on every message that is sent."""

    def __init__(self, mail, plan, rank, errors):
        super().__init__(mail, plan, rank)
        self._errors, self._kept = errors, defaultdict(dict)

    def outgoing(self, step, op):
        packet = super().outgoing(step, op).copy()
        values = packet.view(np.float32)
        way = "activations" if op.hop.source < op.hop.to else "gradients"
        self._errors[way, ""] += np.square(values, dtype=np.float64).sum()
        for name in (EQUAL, FRESH, OLD):
            state, found = self._kept[name, op.name], np.empty_like(values)
            state |= {"step": step, "name": op.name}
            CODECS[name].decode(CODECS[name].encode(values, state), found)
            self._errors[way, name] += np.square(found - values, dtype=np.float64).sum()
        return packet


def test_bits_by_variance_pay_on_gradients_of_activations_and_old_bits_do_not():
    net, plan, errors = NETS[NET], plan_of(NET, "1f1b", 2), defaultdict(float)
    training = InProcessTraining(
        net, DATA[net.data](0), plan, replace(settings("1f1b"), steps=STEPS), PipelineWorker
    )
    for rank, learner in enumerate(training.learners):
        training._mails[rank] = Watched(learner.mail, plan, rank, errors)
    for step in range(STEPS):
        training.step(step)
    share = {key: error / errors[key[0], ""] for key, error in errors.items()}
    print({" ".join(key): f"{value:.2g}" for key, value in share.items() if key[1]})
    # Samples' gradients differ by orders of magnitude, and are others in the next step.
    assert share["gradients", FRESH] < 0.5 * share["gradients", EQUAL]
    assert share["gradients", OLD] > share["gradients", EQUAL]
    # Activations of all samples spread alike: equal bits are the best ones.
    assert share["activations", FRESH] <= share["activations", EQUAL] * 1.01
