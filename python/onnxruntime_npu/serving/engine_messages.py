"""What the server and the engine's process say to each other, pickled over a socket pair."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Guidance:
    """A grammar that an answer follows: kind and text as the engine takes them.

    ``param`` is the parameter of the request that asked for it.
    """

    kind: str  # json_schema, regex or lark_grammar
    text: str
    param: str


@dataclass(frozen=True)
class Sampling:
    """How tokens of one request are chosen; greedy: temperature, top_p, top_k, seed do not count.

    With ``guidance`` and without ``greedy`` there is a seed, by which the answer can be repeated.
    """

    max_tokens: int
    greedy: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    seed: int | None = None  # from 0 to 2**64 - 1
    repetition_penalty: float = 1.0
    guidance: Guidance | None = None


@dataclass(frozen=True)
class Submit:
    """To the engine: continue these tokens; ``key`` names the request in answers."""

    key: int
    tokens: list[int]
    sampling: Sampling


@dataclass(frozen=True)
class Cancel:
    """To the engine: forget the request, which may have finished already."""

    key: int


@dataclass(frozen=True)
class Ready:
    """From the engine, once, after its warm-up: its limits."""

    max_batch: int
    max_length: int  # prompt and generated tokens of one request
    cache_blocks: int
    vocabulary: int


@dataclass
class Step:
    """From the engine, after each of its steps.

    Attributes:
        started: requests that the engine has taken.
        tokens: pairs of request and new token.
        finished: triples of request, reason (``stop``, ``length``, ``refused`` or ``error``) and
            message; refused: its guidance is no grammar.
        preempted: requests that gave their blocks to others and will be continued.
        blocks_used: blocks that hold tokens of running requests.
    """

    started: list[int] = field(default_factory=list)
    tokens: list[tuple[int, int]] = field(default_factory=list)
    finished: list[tuple[int, str, str]] = field(default_factory=list)
    preempted: int = 0
    blocks_used: int = 0
