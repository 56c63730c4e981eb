"""
A step with and without fp16
============================

BERT-base on four nodes of eight V100, joined by 25 Gbit/s per node.
"""

import commsched as cs

lab = cs.Machine("p3.16xlarge", nodes=4, nic="25 Gbit/s")
dense = cs.Plan.best("bert-base", lab)
half = cs.Plan.best("bert-base", lab, allow="fp16")
cs.compare(dense, half)

# %%
# The step without compression; the bars with hatches are communication that no computing hides:

without = dense.simulate().plot(width=9, title="dense")

# %%
# The step with fp16:

compressed = half.simulate().plot(width=9, title="fp16")
