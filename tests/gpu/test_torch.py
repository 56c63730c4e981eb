"""commsched.torch on two ranks that share a GPU: the bits of PyTorch and MPI_Allreduce there."""

import re
import sys

import pytest

from tests.gpu.here import needs_a_gpu
from tests.support.jobs import Job

needs_a_gpu()
pytest.importorskip("torch")

LIMIT = 200  # s
CHECKS = [
    "mlp",
    "gpt_with_tied_embedding",
    "lstm",
    "cnn_with_batch_norm",
    "gradient_accumulation_and_clipping",
    "several_backward_passes",
    "bfloat16",
    "grad_scaler_skips_on_all_ranks",
    "unused_parameters_on_some_ranks",
    "a_parameter_without_a_gradient_is_named_at_the_step",
    "frozen_parameters_and_user_hooks",
    "a_state_goes_on_to_the_same_bits",
    "activation_checkpointing",
    "sparse_gradients_of_embeddings",
    "sparse_gradients_overflow_on_all_ranks",
    "updates_under_the_next_forward_pass_have_the_same_bits",
]


@pytest.fixture(scope="module")
def output():
    variables = {"DEVICE": "cuda", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    command = [sys.executable, "-m", "tests.support.torch_job", *CHECKS]
    with Job(2, command, variables=variables) as job:
        return job.wait(LIMIT).output


@pytest.mark.parametrize("name", CHECKS)
def test_on_two_ranks(name, output):
    found = re.search(rf"<{name}>(.*?)</{name}>", output, re.DOTALL)
    assert found, output
    assert found[1] == "ok"
