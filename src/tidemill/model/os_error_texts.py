"""Texts for Python's exceptions about unreadable data, for users without knowledge of Python."""

from __future__ import annotations


def fault_of(problem: BaseException) -> str:
    """Returns the reason why a text is not valid UTF-8, JSON, numbers or fields, or a file cannot be read.

    ``problem`` is the exception of the reader: ValueError and its subclasses, KeyError, IndexError,
    RecursionError, OSError. The result follows a colon in messages.
    """
    if isinstance(problem, UnicodeDecodeError):
        return f"byte {problem.start} (0x{problem.object[problem.start]:02x}) is not UTF-8"
    if isinstance(problem, UnicodeEncodeError):
        return f"character {problem.start + 1} is a lone surrogate"
    if isinstance(problem, OSError):
        return _os_error_text(problem)
    if isinstance(problem, KeyError):
        return f"{problem.args[0]} is missing" if problem.args else "a field is missing"
    if isinstance(problem, RecursionError):
        return "it is nested too deeply"
    if isinstance(problem, IndexError):
        return "it ends too early"
    position = getattr(problem, "pos", None)
    if isinstance(position, int):
        return f"character {position + 1} is not allowed there"
    return _value_error_text(str(problem))


def _os_error_text(problem: OSError) -> str:
    """Returns the text of a system or TLS error, with the fault of a certificate."""
    fault = getattr(problem, "reason", None)
    if isinstance(fault, str):
        certificate = getattr(problem, "verify_message", "")
        return fault.replace("_", " ").lower() + (f" ({certificate})" if certificate else "")
    text = problem.strerror or str(problem) or "the system gives no reason"
    return text[:1].lower() + text[1:]


def _value_error_text(text: str) -> str:
    """Returns the meaning of a ValueError; its own text where this package raised it."""
    if text.startswith("invalid literal for int()"):
        return f"{text.rpartition(': ')[2]} is not a whole number"
    if text.startswith("Exceeds the limit"):
        return "a number has too many digits"
    if "values to unpack" in text or "update sequence" in text or "object has no attribute" in text:
        return "fields are missing or have the wrong type"
    return text
