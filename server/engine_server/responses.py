"""The shapes of answers; they are encoded, and described in /openapi.json, from here."""

from __future__ import annotations

from typing import Any

import msgspec


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Where the prompt's tokens came from."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of a whole request; a prompt is counted once for all its choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities in the completions' form, one entry per token."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class TokenLogprob(msgspec.Struct, frozen=True):
    """One token of the likeliest."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChosenLogprob(msgspec.Struct, frozen=True):
    """The token that was chosen, and the likeliest ones."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities in the chat's form, one entry per token."""

    content: list[ChosenLogprob]
    refusal: None = None


class PromptLogprob(msgspec.Struct, frozen=True):
    """One token at one position of the prompt."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""By token id, for each position of the prompt; null for the first."""

FinishReason = str
StopReason = int | str | None


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One continuation of one prompt."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: StopReason
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of /v1/completions."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage


class CalledFunction(msgspec.Struct, frozen=True):
    """A function, and its arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool."""

    id: str
    type: str = "function"
    function: CalledFunction


class ChatMessage(msgspec.Struct, frozen=True):
    """What was answered; content is null when there are only calls."""

    role: str
    content: str | None
    refusal: None = None
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: StopReason
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of /v1/chat/completions."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is served."""

    id: str
    object: str
    created: int
    owned_by: str
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The models that are served."""

    object: str
    data: list[Model]


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Text(msgspec.Struct, frozen=True):
    """Answer of /detokenize."""

    prompt: str


class Error(msgspec.Struct, frozen=True):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(msgspec.Struct, frozen=True):
    """Every answer that isn't 200."""

    error: Error


class EngineAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of /v1/engine."""

    object: str
    version: str
    model: str
    max_model_len: int
    settings: list[dict[str, str]]
    stats: dict[str, Any]


class AnthropicUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts as Anthropic's API splits them: cached ones are counted apart."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int


class AnthropicMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of /v1/messages."""

    id: str
    type: str
    role: str
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: AnthropicUsage


class InputTokens(msgspec.Struct, frozen=True):
    """Answer of /v1/messages/count_tokens."""

    input_tokens: int


class Embedding(msgspec.Struct, frozen=True):
    """One vector, as numbers or as base64."""

    object: str
    index: int
    embedding: list[float] | str


class EmbeddingUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of a request for vectors."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of /v1/embeddings."""

    object: str
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class TokenizerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of /tokenizer_info."""

    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | dict[str, str] | None


class ResponseResource(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of /v1/responses; described in full by the Open Responses specification."""

    id: str
    object: str
    created_at: int
    completed_at: int | None
    status: str
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any] | None
