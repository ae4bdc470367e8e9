"""Long texts are tokenized beside the event loop, by a tokenizer of the thread's own."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from engine.runtime.tokenizer_thread import TokenizerThread
from engine.testing.tiny import byte_tokenizer


def test_only_long_texts_leave_the_event_loops_thread() -> None:
    tokenizer, seen = byte_tokenizer(), list[tuple[str, bool]]()

    async def main() -> list[Any]:
        thread = TokenizerThread(tokenizer)

        def work(own: Any) -> Any:
            seen.append((threading.current_thread().name, own is tokenizer))
            return own("abc").input_ids

        found = [await thread.run(work, size) for size in (10, 10**6, 10**6)]
        thread.close()
        return found

    assert asyncio.run(main()) == [tokenizer("abc").input_ids] * 3
    assert seen[0] == ("MainThread", True)
    assert all(name.startswith("tokenizer") and not same for name, same in seen[1:])


def test_the_loop_goes_on_while_a_long_text_is_tokenized() -> None:
    async def main() -> bool:
        thread, going_on = TokenizerThread(byte_tokenizer()), threading.Event()
        work = asyncio.ensure_future(thread.run(lambda _: going_on.wait(10), 10**6))
        await asyncio.sleep(0)
        going_on.set()
        result = await work
        thread.close()
        return result

    assert asyncio.run(main())


def test_both_threads_may_tokenize_at_once() -> None:
    async def main() -> None:
        thread = TokenizerThread(byte_tokenizer())
        text = "some words " * 3000

        def work(own: Any) -> Any:
            return own(text, truncation=True, max_length=50).input_ids

        jobs = [asyncio.ensure_future(thread.run(work, 10**6)) for _ in range(3)]
        while not all(job.done() for job in jobs):
            await thread.run(lambda own: own("ab", truncation=True, max_length=1).input_ids, 1)
            await asyncio.sleep(0)
        assert {len(job.result()) for job in jobs} == {50}
        thread.close()

    asyncio.run(main())


def test_without_a_tokenizer_work_is_told_so() -> None:
    thread = TokenizerThread(None)
    assert asyncio.run(thread.run(lambda own: own is None, 10**6))
    thread.close()
