"""All ranks in one process: `commsched.methods.lockstep` under the name that runs know it by."""

from commsched.methods.lockstep import AGREE, exchange, fresh_states, run_method, run_phase

__all__ = ["AGREE", "exchange", "fresh_states", "run_method", "run_phase"]
