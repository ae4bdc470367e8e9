"""Finds stop strings in text that comes in pieces, and holds back no more than it must."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class StopStrings:
    """The automaton of Aho and Corasick (1975) for some stop strings.

    A state is the longest end of the text so far that some stop string begins with. It is at the
    same time what has to be held back: nothing shorter is safe, nothing longer is needed. The
    work for a character doesn't depend on how many strings there are or how long they are.

    Args:
        strings: one or more, none empty.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._fallback = [0]
        self._found: list[str | None] = [None]
        self._held = [0]
        for string in strings:
            self._add(string)
        self._link()

    def _add(self, string: str) -> None:
        state = 0
        for depth, char in enumerate(string, start=1):
            following = self._next[state].get(char)
            if following is None:
                following = self._next[state][char] = len(self._next)
                self._next.append({})
                self._fallback.append(0)
                self._found.append(None)
                self._held.append(depth)
            state = following
        self._found[state] = string

    def _link(self) -> None:
        """Let each state know the next shorter one, nearest to the start first."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            shorter = self._fallback[state]
            # The longest of the strings that end here; its own is the longest there is.
            if self._found[state] is None:
                self._found[state] = self._found[shorter]
            if not self._next[state]:
                # A whole stop string that nothing continues: only its end can begin another.
                self._held[state] = self._held[shorter]
            for char, following in self._next[state].items():
                self._fallback[following] = self._step(shorter, char) if state else 0
                queue.append(following)

    def _step(self, state: int, char: str) -> int:
        while state and char not in self._next[state]:
            state = self._fallback[state]
        return self._next[state].get(char, 0)

    def scan(self, state: int, text: str, *, ignore: bool = False) -> tuple[int, int, str | None]:
        """Read text.

        Args:
            state: where the text before has led; 0 at the start.
            text: what follows.
            ignore: read on over stop strings.

        Returns:
            The new state, how many characters were read, and the stop string that ends with the
            last of them: the one that ends first and, of several that end there, the longest.
        """
        following, found = self._next, self._found
        for count, char in enumerate(text, start=1):
            if char in following[state]:
                state = following[state][char]
            elif state:
                state = self._step(self._fallback[state], char)
            if state and not ignore and found[state] is not None:
                return state, count, found[state]
        return state, len(text), None

    def held(self, state: int) -> int:
        """Return how many characters at the end of the text may be the start of a stop string."""
        return self._held[state]


class StopMatcher:
    """Passes the text of one output on, up to the first stop string.

    Args:
        strings: the stop strings.
        include: whether the stop string itself is passed on too.

    Attributes:
        found: the stop string that ended the text; None while there is none.
    """

    __slots__ = ("_held", "_include", "_state", "_strings", "found")

    def __init__(self, strings: StopStrings, *, include: bool) -> None:
        self._strings, self._include = strings, include
        self._state, self._held = 0, ""
        self.found: str | None = None

    def push(self, text: str, *, ignore: bool = False) -> str:
        """Take text and return what can be shown; after a stop string has ended it, nothing.

        Args:
            text: what follows the text so far.
            ignore: a stop string that ends within this text doesn't count.
        """
        if self.found is not None or not text:
            return ""
        state, count, found = self._strings.scan(self._state, text, ignore=ignore)
        whole = self._held + text[:count]
        if found is not None:
            self.found, self._held = found, ""
            return whole if self._include else whole[: -len(found)]
        self._state = state
        settled = len(whole) - self._strings.held(state)
        self._held = whole[settled:]
        return whole[:settled]

    def would_stop(self, text: str) -> bool:
        """Whether a stop string would end within this text."""
        return self.found is None and self._strings.scan(self._state, text)[2] is not None

    def release(self) -> str:
        """Return what was held back, because nothing follows."""
        held, self._held = self._held, ""
        return held
