"""Bodies of requests. What cannot be done is refused, never ignored."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, Tag, model_validator

from .api_errors import ApiError, bad_request
from .messages import Body, Message, TopBody
from .response_format import ResponseFormat
from .texts import FIRST_ERROR, TEXT_OR_LIST, Texts, Tokens, each_text
from .tools import Tool, ToolChoice

_MOST_ALTERNATIVES = 20  # tokens beside each one, with their log-probabilities
_MOST_BIASES = 1024
Alternatives = Annotated[int, Field(ge=0, le=_MOST_ALTERNATIVES)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
Stop = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[str], FIRST_ERROR, Tag("list")], TEXT_OR_LIST
]


def _few_biases(given: Any) -> Any:
    """Refuse too many before each of them is read."""
    if isinstance(given, dict) and len(given) > _MOST_BIASES:
        message = f"logit_bias: expected at most {_MOST_BIASES} tokens, got {len(given)}"
        raise bad_request(message, param="logit_bias")
    return given


_TEXT_ONLY = "the models here read and write text only"
_OLD_TOOLS = "use tools and tool_choice, which have replaced it"
# Parameters of OpenAI's or similar interfaces that are not served: the values by which clients say
# that they do not ask for it, and why.
_UNAVAILABLE: dict[str, tuple[tuple[Any, ...], str]] = {
    "audio": ((None,), _TEXT_ONLY),
    "best_of": ((None, 1), "ask for n answers with logprobs and choose among them"),
    "function_call": ((None, "none"), _OLD_TOOLS),
    "functions": ((None, []), _OLD_TOOLS),
    "modalities": ((None, ["text"]), _TEXT_ONLY),
    "moderation": ((None,), "texts are not judged here"),
    "prediction": ((None,), "no text is taken for the answer before the model has written it"),
    "reasoning_effort": ((None,), "how much a model reasons is up to its chat template"),
    "suffix": (
        (None,),
        "a model's marks for text to be filled in are not known: write them in prompt",
    ),
    "verbosity": ((None,), "say it in a message"),
    "web_search_options": ((None,), "nothing is searched here"),
}
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


class StreamOptions(Body):
    """Of a streamed answer."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> StreamOptions:
        if self.include_obfuscation:
            message = "include_obfuscation is not supported: events are as long as their text"
            raise ApiError(400, "unsupported_parameter", message, param="stream_options")
        return self


class Generation(TopBody):
    """What completions and chat have in common."""

    prompt_name: ClassVar[str]  # of the parameter that has the prompt

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=128)] = 1
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None  # 0 and -1: all
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[str, Bias], BeforeValidator(_few_biases)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**64 - 1)] | None = None
    stop: Stop | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unavailable(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        for name, (neutral, reason) in _UNAVAILABLE.items():
            if name in body and not any(_same(body[name], value) for value in neutral):
                message = f"{name} is not supported, leave it out: {reason}"
                raise ApiError(400, "unsupported_parameter", message, param=name)
        left_out = _LABELS.union(_UNAVAILABLE)
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

    @property
    def wants_usage(self) -> bool:
        """Whether a streamed answer ends with the numbers of tokens."""
        return bool(self.stream_options and self.stream_options.include_usage)


def _same(value: Any, neutral: Any) -> bool:
    return type(value) is type(neutral) and value == neutral


class CompletionRequest(Generation):
    """Body of /v1/completions; a prompt is text or tokens."""

    prompt_name: ClassVar[str] = "prompt"

    prompt: Texts
    max_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None  # 0: the prompt alone
    echo: bool | None = None  # begin the answer with the prompt
    logprobs: Alternatives | Literal[False] | None = None  # 0: of the answer's tokens alone

    @property
    def scores(self) -> int | None:
        """How many tokens are wanted beside each one, with log-probabilities; None: no scores."""
        return None if self.logprobs is False else self.logprobs

    @property
    def echoes(self) -> bool:
        """Whether an answer begins with the prompt."""
        return bool(self.echo)

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts, also if one is given alone."""
        return each_text(self.prompt)


class ChatRequest(Generation):
    """Body of /v1/chat/completions."""

    prompt_name: ClassVar[str] = "messages"

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Count | None = None
    tools: Annotated[list[Tool], FIRST_ERROR] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None

    @model_validator(mode="after")
    def _check_scores(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            message = "top_logprobs goes with logprobs: set it to true, too"
            raise bad_request(message, param="top_logprobs")
        return self

    @property
    def scores(self) -> int | None:
        """How many tokens are wanted beside each one, with log-probabilities; None: no scores."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def limit(self) -> int | None:
        """Max number of tokens to generate, under its new or its old name."""
        given = self.max_completion_tokens
        return self.max_tokens if given is None else given


class DetokenizeRequest(TopBody):
    """Body of /detokenize."""

    model: str | None = None
    tokens: Tokens


class TokenizeRequest(TopBody):
    """Body of /tokenize: a text or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = None
    add_special_tokens: bool = True

    @model_validator(mode="after")
    def _check(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ApiError(400, "invalid_value", "expected either prompt or messages")
        return self
