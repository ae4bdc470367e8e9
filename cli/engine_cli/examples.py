"""Examples at the end of a help page."""

from __future__ import annotations


def with_examples(text: str, *lines: str) -> str:
    r"""Return a help text with an `Examples` section.

    Args:
        text: the help; paragraphs are kept.
        *lines: whole command lines; a test parses each.
    """
    # \b keeps click from wrapping what follows.
    return "\n".join([text, "", "\b", "Examples:", *(f"  {line}" for line in lines)])
