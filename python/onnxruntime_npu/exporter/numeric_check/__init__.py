"""The numeric check of a written file against the eager model that it was made of.

The proofs compare modules before they are traced; this compares what a user will run.

- ``passages``: the token rows: parts of ``evaluation.txt``, or random.
- ``reference``: what the eager model gives for them, taken before the proofs take it apart.
- ``expectation``: how far a dtype and a scheme may depart from it, and why.
- ``measurement``: what the file gives, on each provider.
"""

from .measurement import check_file
from .passages import evaluation_text
from .reference import Reference

__all__ = ["Reference", "check_file", "evaluation_text"]
