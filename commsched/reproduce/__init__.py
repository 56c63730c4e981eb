"""Published numbers against the library's: one file per paper."""

from commsched.reproduce.base import PAPERS, Paper, Reproduction, Row, Trend, reproduce

__all__ = ["PAPERS", "Paper", "Reproduction", "Row", "Trend", "reproduce"]
