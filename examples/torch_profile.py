"""A small GPT under torch.profiler: a trace that `commsched import` makes a net of.

python examples/torch_profile.py trace.json.gz
mpiexec -n 2 python examples/torch_profile.py trace.json.gz    # under DDP; the trace of rank 0
commsched import trace.json.gz -o net.json
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks that share a processor

import torch
import torch_ddp_hook
import torch_gpt
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule

COMM = torch_gpt.COMM

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", help="file to write")
    parser.add_argument("--steps", type=int, default=5, help="recorded steps; default: 5")
    parser.add_argument("--modules", action="store_true", help="record the modules' names, too")
    parser.add_argument("--operators", metavar="FILE", help="record the operators, too")
    options = parser.parse_args()
    model, _, _, batches = torch_gpt.build()
    if COMM.size > 1:
        torch_ddp_hook.start_gloo(COMM)
        model = DistributedDataParallel(model, bucket_cap_mb=0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = torch.utils.data.DataLoader(torch.cat(batches[:50]), batch_size=torch_gpt.BATCH)
    record = {"record_shapes": True, "with_stack": options.modules}
    if options.operators and COMM.rank == 0:
        observer = ExecutionTraceObserver().register_callback(options.operators)
        record["execution_trace_observer"] = observer
    plan = schedule(wait=2, warmup=1, active=options.steps, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, **record) as profiler:
        for _, batch in zip(range(options.steps + 4), loader, strict=False):
            optimizer.zero_grad()
            guesses = model(batch[:, :-1])
            functional.cross_entropy(guesses.flatten(0, 1), batch[:, 1:].flatten()).backward()
            optimizer.step()
            profiler.step()  # the end of a step
    if COMM.rank == 0:
        profiler.export_chrome_trace(options.trace)
    if COMM.size > 1:
        COMM.Barrier()  # no rank ends while another still writes
        torch.distributed.destroy_process_group()
