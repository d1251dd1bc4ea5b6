"""One request of the lane that sees logits: its place in the cache, the choice of its tokens."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort

from ..generation.least_tokens import LeastTokens
from ..generation.logit_bias import LogitBias
from ..generation.logits_processing import ProcessedChoice, Processor
from ..generation.loop import chooser
from ..generation.penalties import Penalties
from ..sampling import Sampler
from .engine_messages import Score, Scored, Submit
from .logits_model import LogitsModel
from .token_texts import TokenTexts


class LogitsRow:
    """Tokens of a request; some of them are in the cache, ``pending`` ones go there next."""

    def __init__(self, submitted: Submit, model: LogitsModel, blocks: list[int]) -> None:
        """Begin with a prompt, in blocks that have room for the longest answer.

        Raises GrammarError for a grammar that is none, ArgumentError for sampling that the export
        has no graph for.
        """
        self.key, self.adapter, self.blocks = submitted.key, submitted.adapter, blocks
        self.past = 0  # tokens in the cache
        self.pending = list(submitted.tokens)
        self.generated = 0
        self._prompt, self._sampling = submitted.tokens, submitted.sampling
        self._texts = model.texts
        self._scored: list[Scored] = []  # of the prompt
        self._choose = ProcessedChoice(
            _processors(submitted, model),
            chooser(_sampler(submitted), lambda: model.sampling),
        )

    @property
    def scores_prompt(self) -> bool:
        """Whether logits after all pending tokens are wanted."""
        return self._sampling.prompt_scores and not self.generated

    @property
    def full(self) -> bool:
        """Whether the answer has its longest length."""
        return self.generated == self._sampling.max_tokens

    def take_prompt(self, logits: np.ndarray) -> None:
        """Score the prompt's tokens that follow the next ones; logits [W, V]."""
        texts = self._known_texts()
        if not self._scored:
            self._scored.append(Scored(texts.text(self._prompt[0]), None))
        following = self._prompt[self.past + 1 : self.past + 1 + len(logits)]
        for token, row in zip(following, logits, strict=False):
            self._scored.append(scored(texts, row, token, self._sampling.scores or 0))

    def prompt_scores(self) -> list[Scored]:
        """Return those of the whole prompt."""
        return self._scored

    def advance(self, count: int) -> None:
        """Note that so many of the pending tokens are in the cache."""
        self.past += count
        del self.pending[:count]

    def next(self, logits: np.ndarray) -> tuple[int, Scored | None]:
        """Choose the next token from logits [V]; raises GrammarError."""
        value = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(logits[None, None]))
        token = int(self._choose(value)[0])
        self.pending.append(token)
        self.generated += 1
        if self._sampling.scores is None:
            return token, None
        return token, scored(self._known_texts(), logits, token, self._sampling.scores)

    def _known_texts(self) -> TokenTexts:
        assert self._texts is not None, "the lane takes no row that needs texts without them"
        return self._texts


def scored(texts: TokenTexts, logits: np.ndarray, token: int, top: int) -> Scored:
    """Return the log-softmax of logits [V] for a token and for the ``top`` most likely ones."""
    above = logits.astype(np.float32) - logits.max()
    logprobs = above - np.log(np.exp(above).sum(dtype=np.float64)).astype(np.float32)
    best = np.argpartition(-above, range(top))[:top] if top else np.empty(0, np.int64)
    return Scored(
        texts.text(token),
        float(logprobs[token]),
        tuple(Score(texts.text(int(each)), float(logprobs[each])) for each in best),
    )


def _sampler(submitted: Submit) -> Sampler:
    sampling = submitted.sampling
    if sampling.greedy:
        return Sampler()
    return Sampler(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed,
    )


def _processors(submitted: Submit, model: LogitsModel) -> list[Processor]:
    """Return what changes the logits, in its order."""
    sampling = submitted.sampling
    processors: list[Processor] = []
    penalties = {
        "repetition": sampling.repetition_penalty,
        "presence": sampling.presence_penalty,
        "frequency": sampling.frequency_penalty,
    }
    if penalties != {"repetition": 1, "presence": 0, "frequency": 0}:
        processors.append(Penalties([submitted.tokens], model.vocabulary, **penalties))
    if sampling.logit_bias:
        processors.append(LogitBias(sampling.logit_bias))
    if sampling.min_tokens:
        processors.append(LeastTokens(model.stop_tokens, sampling.min_tokens))
    if sampling.guidance is not None and model.texts is not None:
        processors.append(model.texts.mask(sampling.guidance))
    return processors
