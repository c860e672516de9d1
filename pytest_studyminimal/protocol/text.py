"""Hostile text made plain: model, server and corpus words on their way to a line of output."""

from __future__ import annotations


def one_line(text: str, limit: int = 300) -> str:
    """Return `text` as one printable line of valid UTF-8, cut with a visible mark.

    Control characters, line and paragraph separators, surrogates and bidirectional marks are shown
    as escapes, so that nothing reaches a terminal or a report raw.
    """
    plain = "".join(char if char.isprintable() else _escape(char) for char in text[: limit + 1])
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"


def _escape(char: str) -> str:
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def dollars(text: str) -> str:
    """Return a decimal amount as money on a line, every digit kept: `$0.00088`."""
    if not text[-1:].isdigit():
        return text  # a cap that was lifted is a word
    return f"-${text[1:]}" if text.startswith("-") else f"${text}"
