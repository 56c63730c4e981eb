"""All checks of commsched.torch on the ranks of one job: `python -m tests.support.torch_job`.

Arguments: names of checks, all by default; DEVICE=cuda makes models on a GPU. Each check prints its
name with "ok" or what went wrong.
"""

import os
import sys
import traceback

import torch

from commsched.run.job import agree
from tests.support import (
    torch_capture_checks,
    torch_checkpoint_checks,
    torch_expert_checks,
    torch_late_checks,
    torch_refusal_checks,
    torch_sparse_checks,
    torch_step_checks,
    torch_strategy_checks,
    torch_timeline_checks,
)
from tests.support.torch_checks import CHECKS, WORLD

assert torch_capture_checks  # imported for their checks
assert torch_checkpoint_checks
assert torch_expert_checks
assert torch_late_checks
assert torch_refusal_checks
assert torch_sparse_checks
assert torch_step_checks
assert torch_strategy_checks
assert torch_timeline_checks


def main():
    torch.set_num_threads(1)
    torch.set_default_device(os.environ.get("DEVICE", "cpu"))
    for name, work in CHECKS.items():
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        try:
            work()
            text = ""
        except Exception:  # of any kind: the other ranks must hear of it, and go on together
            text = traceback.format_exc()
        wrong = [f"rank {r}: {t}" for r, t in enumerate(agree.gather_text(text, WORLD)) if t]
        if WORLD.rank == 0:
            print(f"<{name}>{'ok' if not wrong else ''.join(wrong)}</{name}>", flush=True)


if __name__ == "__main__":
    main()
