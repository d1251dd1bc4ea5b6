"""Bodies of requests. What the engine cannot do is refused, never ignored."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from .api_errors import ApiError
from .messages import Body, Message, TopBody
from .response_format import ResponseFormat
from .texts import Texts, each_text
from .tools import Tool, ToolChoice

# Parameters of OpenAI's or similar interfaces that the engine has no equal of, with the values by
# which clients say that they do not ask for it.
_UNAVAILABLE: dict[str, tuple[Any, ...]] = {
    "audio": (None,),
    "best_of": (None, 1),
    "frequency_penalty": (None, 0, 0.0),
    "function_call": (None, "none"),
    "functions": (None, []),
    "logit_bias": (None, {}),
    "logprobs": (None, False),
    "min_p": (None, 0, 0.0),
    "modalities": (None, ["text"]),
    "prediction": (None,),
    "presence_penalty": (None, 0, 0.0),
    "reasoning_effort": (None,),
    "suffix": (None,),
    "top_logprobs": (None,),
    "verbosity": (None,),
    "web_search_options": (None,),
}
# Parameters that do not change the answer.
_LABELS = frozenset(
    (
        "metadata",
        "prompt_cache_key",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    )
)


class StreamOptions(Body):
    """Of a streamed answer."""

    include_usage: bool | None = None


class Generation(TopBody):
    """What completions and chat have in common."""

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=128)] = 1
    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None  # 0 and -1: all
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**64 - 1)] | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unavailable(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        for name, neutral in _UNAVAILABLE.items():
            if name in body and not any(_same(body[name], value) for value in neutral):
                message = f"{name} is not supported by this server's engine: leave it out"
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
    def wants_usage(self) -> bool:
        """Whether a streamed answer ends with the numbers of tokens."""
        return bool(self.stream_options and self.stream_options.include_usage)


def _same(value: Any, neutral: Any) -> bool:
    # 0 asks for the log-probability of each token, False for none.
    return type(value) is type(neutral) and value == neutral


class CompletionRequest(Generation):
    """Body of /v1/completions; a prompt is text or tokens."""

    prompt: Texts
    echo: bool | None = None  # begin the answer with the prompt

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts, also if one is given alone."""
        return each_text(self.prompt)


class ChatRequest(Generation):
    """Body of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @property
    def limit(self) -> int | None:
        """Max number of tokens to generate, under its new or its old name."""
        given = self.max_completion_tokens
        return self.max_tokens if given is None else given


class DetokenizeRequest(TopBody):
    """Body of /detokenize."""

    model: str | None = None
    tokens: list[int]


class TokenizeRequest(TopBody):
    """Body of /tokenize: a text or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool = True

    @model_validator(mode="after")
    def _check(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ApiError(400, "invalid_value", "expected either prompt or messages")
        return self
