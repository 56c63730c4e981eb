"""
Step time by bandwidth
======================

Two nets and two planners at three bandwidths, with and without fp16.
"""

import commsched as cs

study = cs.sweep(
    ["resnet50", "bert-base"],
    cs.Machine("p3.16xlarge", nodes=4),
    planners=["ddp-25mb", "greedy"],
    between=["10 Gbit/s", "25 Gbit/s", "100 Gbit/s"],
    allow=["-", "fp16"],
)
lines = study.plot(break_even=True)

# %%
# The same table as a map, and as the step against the memory of a rank:

numbers = study.plot(y="planner", value="step")

# %%

front = study.plot(pareto="memory", where={"bandwidth": "25"})
