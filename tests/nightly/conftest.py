"""The nightly suite takes every case of the laws that the daily suite samples."""

import os

from tests.support import sampling

sampling.take(nightly=True, repeatable="CI" in os.environ)
