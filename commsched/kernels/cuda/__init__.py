"""Fused kernels for CuPy's arrays, with fewer passes over memory than their twins in NumPy.

Code that needs a single kernel launches it directly; a file here has kernels that work together.
"""

from commsched.kernels.cuda import bits as bits
from commsched.kernels.cuda import hashing as hashing
from commsched.kernels.cuda import merge as merge
from commsched.kernels.cuda import quantise as quantise
from commsched.kernels.cuda import select as select
from commsched.kernels.cuda import spectrum as spectrum
from commsched.kernels.cuda.launch import start as start
from commsched.kernels.cuda.launch import strides as strides
