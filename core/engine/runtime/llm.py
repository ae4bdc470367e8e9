"""Offline inference: the same loop, in this process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, cast

from engine.config import EngineConfig
from engine.errors import ConfigError, RequestError
from engine.events import Event
from engine.request import EngineRequest, RequestOutput
from engine.runtime.engine_core import EngineCore
from engine.runtime.frontend import Frontend
from engine.runtime.output_processor import OutputProcessor
from engine.runtime.progress import progress_bar
from engine.sampling_params import SamplingParams
from engine.settings import Settings, as_settings

Prompt = str | list[int]
Message = dict[str, Any]
_Checked = tuple[str | None, list[int], SamplingParams]
"""A prompt's text (if it came as text), its ids and its parameters."""


class LLM:
    """A model that answers prompts.

    Args:
        model: folder or GGUF file; the demo model when omitted.
        engine_config: the whole configuration as one object, instead of single settings.
        on_event: receives every event, the start-up's included.
        **settings: fields of `EngineConfig`.

    Raises:
        EngineError: a setting, a plugin, the model or its weights are unusable.

    Example:
        >>> with LLM(compilation_config={"mode": "none"}) as llm:  # doctest: +SKIP
        ...     print(llm.generate("Once upon a time")[0].outputs[0].text)
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        engine_config: EngineConfig | Settings | None = None,
        on_event: Callable[[Event], None] | None = None,
        **settings: Any,
    ) -> None:
        if engine_config is not None and (settings or model is not None):
            given = [*(["model"] if model is not None else []), *settings]
            raise ConfigError(
                f"LLM: give either engine_config or single settings, not both "
                f"(engine_config and {', '.join(given)})"
            )
        if engine_config is None:
            if model is not None:
                settings["model"] = model
            engine_config = EngineConfig(**settings)
        self._core = EngineCore(as_settings(engine_config), on_event=on_event)
        config = self._core.resolution.config
        self._frontend = Frontend(
            self._core.tokenizer,
            max_model_len=int(config.max_model_len or 0),
            kv_tokens=self._core.kv_tokens,
            vocab_size=self._core.vocab_size,
            end_token_ids=self._core.end_token_ids,
        )
        self._outputs = OutputProcessor(self._core.tokenizer)
        self._ids = itertools.count()
        self._open = True

    @property
    def resolution(self) -> Any:
        """The settings in force, with reasons."""
        return self._core.resolution

    @property
    def tokenizer(self) -> Any:
        """The transformers tokenizer, or None."""
        return self._core.tokenizer

    @property
    def core(self) -> EngineCore:
        """The loop, for tools that step it themselves."""
        return self._core

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Continue prompts; all run at once, results are in the order of the prompts.

        Args:
            prompts: one prompt (text or token ids) or several.
            sampling_params: one for all, or one for each.
            progress: show a bar when the output is a terminal.

        Raises:
            RequestError: a prompt or parameter is invalid; nothing was started.
        """
        several = _as_list(prompts)
        params = _as_params(sampling_params, len(several))
        checked = [self._check(prompt, one) for prompt, one in zip(several, params, strict=True)]
        return self._run(checked, progress=progress)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Continue one prompt and yield what is new as it comes.

        Leaving the iteration early ends the request.

        Raises:
            RequestError: the prompt or a parameter is invalid; nothing was started.
        """
        return self._stream(self._check(prompt, sampling_params or SamplingParams()))

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        **template_args: Any,
    ) -> Iterator[RequestOutput]:
        """Answer one conversation and yield what is new as it comes; otherwise as `chat`."""
        return self.stream(self._render(list(messages), template_args), sampling_params)

    def _check(self, prompt: Prompt, params: SamplingParams) -> _Checked:
        if not self._open:
            raise RequestError("this LLM was closed")
        text, ids = self._frontend.encode(prompt)
        self._frontend.check(ids, params)
        if params.structured_outputs is not None:
            self._core.check_grammar(params.structured_outputs)
        return text, ids, params

    def _stream(self, checked: _Checked) -> Iterator[RequestOutput]:
        request_id, children = self._expand(checked)
        waiting = children[::-1]
        finished = False
        try:
            while not finished:
                self._feed(waiting)
                for result in self._step(delta=True):
                    finished = result.finished
                    yield result
        finally:
            if not finished:
                self._abort(request_id)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
        **template_args: Any,
    ) -> list[RequestOutput]:
        """Answer a conversation (or several) through the model's chat template.

        Args:
            messages: a list of `{"role": …, "content": …}`, or a list of such lists.
            sampling_params: one for all, or one for each.
            progress: show a bar when the output is a terminal.
            **template_args: handed to the chat template.

        Raises:
            RequestError: the model has no chat template, or the template refuses the messages.
        """
        conversations: list[Any] = (
            [list(messages)] if messages and isinstance(messages[0], dict) else list(messages)
        )
        prompts: list[Prompt] = [self._render(c, template_args) for c in conversations]
        return self.generate(prompts, sampling_params, progress=progress)

    def _render(self, messages: list[Message], template_args: dict[str, Any]) -> list[int]:
        tokenizer = self._core.tokenizer
        if tokenizer is None or not getattr(tokenizer, "chat_template", None):
            raise RequestError("messages: this model has no chat template; use generate()")
        from jinja2 import TemplateError

        try:
            text = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **template_args
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise RequestError(
                f"messages: the chat template refuses them: {error}", param="messages"
            ) from error
        # The template writes the special tokens itself.
        return list(tokenizer(text, add_special_tokens=False).input_ids)

    def _run(self, checked: list[_Checked], *, progress: bool) -> list[RequestOutput]:
        order: dict[str, RequestOutput | None] = {}
        waiting: list[EngineRequest] = []
        for one in checked:
            request_id, children = self._expand(one)
            order[request_id] = None
            waiting += children
        waiting.reverse()
        try:
            with progress_bar("generate", len(checked), enabled=progress) as advance:
                while waiting or self._core.has_work:
                    self._feed(waiting)
                    for result in self._step(delta=False):
                        order[result.request_id] = result
                        if result.finished:
                            advance(1)
        except BaseException:
            for request_id in order:
                self._abort(request_id)
            raise
        return [result for result in order.values() if result is not None]

    def _expand(self, checked: _Checked) -> tuple[str, list[EngineRequest]]:
        text, ids, params = checked
        request_id = f"llm-{next(self._ids)}"
        ends = list(self._frontend.end_token_ids)
        return request_id, self._outputs.expand(request_id, text, ids, params, ends)

    def _abort(self, request_id: str) -> None:
        for child in self._outputs.abort(request_id):
            self._core.abort(child)

    def _feed(self, waiting: list[EngineRequest]) -> None:
        """Hand over as many sequences as the bounded queue takes."""
        limit = self._core.resolution.config.max_queue
        while waiting and self._core.num_waiting < limit:
            self._core.add(waiting.pop())

    def _step(self, *, delta: bool) -> list[RequestOutput]:
        results, aborts = self._outputs.process(self._core.step(), delta=delta)
        for _, error in self._core.take_refused():
            raise error
        for request_id in aborts:
            self._core.abort(request_id)
        return results

    def close(self) -> None:
        """Free the engine; the object can't be used afterwards."""
        if self._open:
            self._open = False
            self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Sequence) or not prompts:
        raise RequestError("prompts: must be a text, token ids, or a non-empty list of these")
    if isinstance(prompts[0], int):
        return [cast("list[int]", list(prompts))]
    return cast("list[Prompt]", list(prompts))


def _as_params(
    given: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    if given is None:
        given = SamplingParams()
    if isinstance(given, SamplingParams):
        return [given] * count
    if len(given) != count:
        raise RequestError(
            f"sampling_params: {len(given)} for {count} prompts; give one for all or one for each"
        )
    return list(given)
