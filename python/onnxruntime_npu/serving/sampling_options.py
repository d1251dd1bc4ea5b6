"""Options of a request to options of the engine."""

from __future__ import annotations

import secrets

from ..sampling import SMALLEST
from .api_errors import bad_request, too_long
from .engine_messages import Guidance, Ready, Sampling
from .generation_body import Generation
from .served_model import ServedModel
from .texts import check_tokens


def sampling_options(
    body: Generation,
    model: ServedModel,
    limits: Ready,
    prompt: list[int],
    max_tokens: int | None,
    guidance: Guidance | None,
    guesses: int,
    n: int,
) -> list[Sampling]:
    """Return the options of each of the ``n`` choices for a prompt.

    What a request leaves open is taken from the model's generation_config.json. ``max_tokens``
    None: as many as the context holds. ``guesses`` are tokens to guess at once. Raises a 400 for a
    prompt that the model cannot take.
    """
    if not prompt:
        raise bad_request("expected a prompt of at least one token", param=body.prompt_name)
    room = check_room(prompt, max_tokens, limits.max_length, body.prompt_name)
    most = room if max_tokens is None else max_tokens
    least = _least(body, most, guidance)
    check_tokens(prompt, limits.vocabulary, body.prompt_name)
    if n > limits.max_batch:
        raise bad_request(f"expected n <= {limits.max_batch}, got {n}", param="n")
    temperature, top_p = randomness(body, model)
    top_k = int(_chosen(body.top_k, model.defaults.get("top_k"), 0))
    penalty = _chosen(body.repetition_penalty, model.defaults.get("repetition_penalty"), 1.0)
    bias = body.bias
    check_tokens(list(bias), limits.vocabulary, "logit_bias")
    # Wherever only the most likely token is left, since the engine refuses to sample then; and it
    # takes top_p = 0 for "all". Numbers below the smallest float are 0 to it.
    greedy = temperature < SMALLEST or top_p <= 1 / limits.vocabulary or top_k == 1
    seed = body.seed
    if seed is None and guidance is not None:
        seed = secrets.randbits(64)
    return [
        Sampling(
            max_tokens=most,
            greedy=greedy,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k if 0 < top_k < limits.vocabulary else 0,
            # The engine's seeds are unsigned.
            seed=None if seed is None else (seed + index) % 2**64,
            min_p=body.min_p or 0.0,
            repetition_penalty=penalty,
            presence_penalty=body.presence_penalty or 0.0,
            frequency_penalty=body.frequency_penalty or 0.0,
            logit_bias=bias,
            guidance=guidance,
            min_tokens=least,
            guesses=guesses,
            scores=None if body.scores is None else min(body.scores, limits.vocabulary),
            prompt_scores=body.scores is not None and body.echoes,
        )
        for index in range(n)
    ]


def _least(body: Generation, most: int, guidance: Guidance | None) -> int:
    """Return how many tokens an answer of at most ``most`` has at least."""
    least, param = (most, "ignore_eos") if body.ignore_eos else (body.min_tokens or 0, "min_tokens")
    if least > most:
        raise bad_request(f"expected min_tokens of at most {most}, got {least}", param=param)
    if least and guidance is not None:
        message = f"expected no {param} beside {guidance.param}: a complete answer of a form ends"
        raise bad_request(message, param=param)
    return least


def check_room(prompt: list[int], max_tokens: int | None, most: int, param: str) -> int:
    """Return how many tokens may follow a prompt.

    Raises a 400 if ``most`` tokens are too few for it and ``max_tokens``, one if that is None.
    """
    room = most - len(prompt)
    if room < (1 if max_tokens is None else max_tokens):
        asked = f" and {max_tokens} to generate" if max_tokens else ""
        raise too_long(most, f"a prompt of {len(prompt)}{asked}", param=param)
    return room


def randomness(body: Generation, model: ServedModel) -> tuple[float, float]:
    """Return the temperature and ``top_p`` of a request, or what the model has in their place."""
    temperature = _chosen(body.temperature, model.defaults.get("temperature"), 1.0)
    return temperature, _chosen(body.top_p, model.defaults.get("top_p"), 1.0)


def _chosen(asked: float | None, configured: float | None, default: float) -> float:
    if asked is not None:
        return asked
    return default if configured is None else float(configured)
