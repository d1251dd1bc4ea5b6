"""What requests for new text have in common, and how parameters that are not served are refused."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, Tag, model_validator

from .api_errors import ApiError, bad_request
from .messages import Body, TopBody
from .texts import FIRST_ERROR, TEXT_OR_LIST

_MOST_ALTERNATIVES = 20  # tokens beside each one, with their log-probabilities
_MOST_BIASES = 1024
Alternatives = Annotated[int, Field(ge=0, le=_MOST_ALTERNATIVES)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
Stop = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[str], FIRST_ERROR, Tag("list")], TEXT_OR_LIST
]
# Of parameters that are not served: the values by which clients say that they do not ask for it,
# and why.
Unavailable = Mapping[str, tuple[tuple[Any, ...], str]]
# What a chat template reads beside messages and tools, such as {"enable_thinking": false}.
TemplateArguments = Annotated[dict[str, Any], Field(default_factory=dict)]
TEXT_ONLY = "the models here read and write text only"
# Parameters that do not change the answer.
_LABELS = frozenset(
    (
        "metadata",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    )
)


def _few_biases(given: Any) -> Any:
    """Refuse too many before each of them is read."""
    if isinstance(given, dict) and len(given) > _MOST_BIASES:
        message = f"logit_bias: expected at most {_MOST_BIASES} tokens, got {len(given)}"
        raise bad_request(message, param="logit_bias")
    return given


class StreamOptions(Body):
    """Of a streamed answer."""

    include_obfuscation: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> StreamOptions:
        if self.include_obfuscation:
            message = "include_obfuscation is not supported: events are as long as their text"
            raise ApiError(400, "unsupported_parameter", message, param="stream_options")
        return self


class Generation(TopBody):
    """How new text is drawn, and whether it is sent as it comes.

    ``prompt_name`` is the parameter that has the prompt, ``unavailable`` those that are not served,
    ``labels`` those that do not change the answer.
    """

    prompt_name: ClassVar[str]
    unavailable: ClassVar[Unavailable]
    labels: ClassVar[frozenset[str]] = _LABELS

    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None  # 0 and -1: all
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[str, Bias], BeforeValidator(_few_biases)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    ignore_eos: bool | None = None  # the model does not end the answer at all
    seed: Annotated[int, Field(ge=-(2**63), le=2**64 - 1)] | None = None
    stop: Stop | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unavailable(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        for name, (neutral, reason) in cls.unavailable.items():
            if name in body and not any(_same(body[name], value) for value in neutral):
                message = f"{name} is not supported, leave it out: {reason}"
                raise ApiError(400, "unsupported_parameter", message, param=name)
        left_out = cls.labels.union(cls.unavailable)
        return {name: value for name, value in body.items() if name not in left_out}

    @model_validator(mode="after")
    def _check(self) -> Generation:
        if self.stream_options is not None and not self.stream:
            raise ApiError(
                400,
                "invalid_value",
                "stream_options is for streamed answers: set stream, too",
                param="stream_options",
            )
        stops = self.stop_strings
        if len(stops) > 16 or not all(0 < len(string) <= 1000 for string in stops):
            raise ApiError(
                400,
                "invalid_value",
                "expected at most 16 stop strings of 1 to 1000 characters",
                param="stop",
            )
        return self

    @property
    def stop_strings(self) -> list[str]:
        """The stop strings, also if one is given alone."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def bias(self) -> dict[int, float]:
        """What is added to the logits of tokens; raises a 400 for a key that is no token."""
        given = self.logit_bias or {}
        for key in given:
            if not (key.isascii() and key.isdecimal() and len(key) < 20):
                raise bad_request(
                    f"expected token numbers as keys, got {key[:40]!r}", param="logit_bias"
                )
        return {int(token): value for token, value in given.items()}

    @property
    @abstractmethod
    def scores(self) -> int | None:
        """How many tokens are wanted beside each one, with log-probabilities; None: no scores."""

    @property
    def echoes(self) -> bool:
        """Whether an answer begins with the prompt."""
        return False


def _same(value: Any, neutral: Any) -> bool:
    return type(value) is type(neutral) and value == neutral
