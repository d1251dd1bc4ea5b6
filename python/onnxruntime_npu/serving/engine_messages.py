"""What the server and the engine's process say to each other, pickled over a socket pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """How tokens of one request are chosen; greedy: temperature to min_p and seed do not count.

    With ``guidance`` and without ``greedy`` there is a seed, by which the answer can be repeated.

    Attributes:
        min_tokens: the model does not end the answer before it has so many; not with guidance.
        guesses: tokens that may be guessed at once, where that changes no token.
        scores: how many of the most likely tokens are wanted beside each token; None: no scores.
        prompt_scores: those of the prompt's tokens are wanted, too.
    """

    max_tokens: int
    greedy: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    min_p: float = 0.0
    seed: int | None = None  # from 0 to 2**64 - 1
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    guidance: Guidance | None = None
    min_tokens: int = 0
    guesses: int = 0
    scores: int | None = None
    prompt_scores: bool = False

    @property
    def needs_logits(self) -> bool:
        """Whether the logits have to be seen or changed, which the engine does not do.

        Nor does it read a prompt without an answer.
        """
        changed = self.presence_penalty or self.frequency_penalty or self.logit_bias
        limited = self.min_p and not self.greedy
        seen = self.scores is not None or self.max_tokens == 0
        return bool(changed or limited or seen)

    @property
    def draws_from_all(self) -> bool:
        """Whether tokens are drawn from the whole vocabulary, by the engine slowly."""
        return not self.greedy and self.top_k == 0 and self.guidance is None


@dataclass(frozen=True)
class Submit:
    """To the engine: continue these tokens; ``key`` names the request in answers.

    ``adapter`` is the name of one of the model's LoRA adapters.
    """

    key: int
    tokens: list[int]
    sampling: Sampling
    adapter: str | None = None

    @property
    def longest(self) -> int:
        """Tokens that are cached for its longest answer: all but the last one of that."""
        return len(self.tokens) + max(self.sampling.max_tokens - 1, 0)


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


@dataclass(frozen=True)
class RanksStarted:
    """From the process that leads ranks, once they have begun to open their parts."""

    processes: list[int]


@dataclass(frozen=True)
class Score:
    """The text of a token and its log-probability."""

    text: bytes  # of half a character, perhaps
    logprob: float


@dataclass(frozen=True)
class Scored:
    """A token's score, None for a prompt's first one, and those of the likeliest in its place."""

    text: bytes
    logprob: float | None
    top: tuple[Score, ...] = ()


# The next token of a request: its key, the token, and the score if that was asked for. A class
# would take three times as long to pickle.
NewToken = tuple[int, int, Scored | None]


@dataclass
class Step:
    """From the engine, after each of its steps.

    Attributes:
        started: requests that the engine has taken.
        prompts: pairs of request and scores of its prompt's tokens, before its first new token.
        tokens: what was generated.
        cached: pairs of a finished request and how many tokens of its prompt the cache had from
            earlier ones; none of requests that are not named.
        guessed: tokens that were run before they were chosen.
        accepted: those that were chosen then.
        finished: triples of request, reason (``stop``, ``length``, ``refused`` or ``error``) and
            message; refused: its guidance is no grammar, or too complex.
        preempted: requests that gave their blocks to others and will be continued.
        blocks_added: blocks of a cache that there was not before.
        blocks_used: blocks that hold tokens of running requests.
    """

    started: list[int] = field(default_factory=list)
    prompts: list[tuple[int, list[Scored]]] = field(default_factory=list)
    tokens: list[NewToken] = field(default_factory=list)
    cached: list[tuple[int, int]] = field(default_factory=list)
    guessed: int = 0
    accepted: int = 0
    finished: list[tuple[int, str, str]] = field(default_factory=list)
    preempted: int = 0
    blocks_added: int = 0
    blocks_used: int = 0

    @staticmethod
    def together(steps: Sequence[Step]) -> Step:
        """Return what happened in several lanes."""
        if len(steps) == 1:
            return steps[0]
        whole = Step()
        for step in steps:
            whole.started += step.started
            whole.prompts += step.prompts
            whole.tokens += step.tokens
            whole.cached += step.cached
            whole.guessed += step.guessed
            whole.accepted += step.accepted
            whole.finished += step.finished
            whole.preempted += step.preempted
            whole.blocks_added += step.blocks_added
            whole.blocks_used += step.blocks_used
        return whole
