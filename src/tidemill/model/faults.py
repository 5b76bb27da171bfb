"""What Python says of a text that cannot be read, in words for people who know no Python."""

from __future__ import annotations


def fault_of(problem: BaseException) -> str:
    """Why a text could not be read as UTF-8, as JSON, as numbers or as fields; why a file could not be.

    ``problem`` is what reading it raised: ValueError and what it is the root of, KeyError, IndexError,
    RecursionError, OSError. The words stand after a colon.
    """
    if isinstance(problem, UnicodeDecodeError):
        return f"byte {problem.start} of it (0x{problem.object[problem.start]:02x}) is no UTF-8"
    if isinstance(problem, UnicodeEncodeError):
        return f"character {problem.start + 1} is half of a pair (a lone surrogate)"
    if isinstance(problem, OSError):
        return _of_system(problem)
    if isinstance(problem, KeyError):
        return f"{problem.args[0]} is missing" if problem.args else "a part of it is missing"
    if isinstance(problem, RecursionError):
        return "it is nested too deeply"
    if isinstance(problem, IndexError):
        return "it ends too early"
    position = getattr(problem, "pos", None)
    if isinstance(position, int):
        return f"character {position + 1} cannot stand there"
    return _words(str(problem))


def _of_system(problem: OSError) -> str:
    """What the system says, or TLS: its name for the fault, and what is wrong with a certificate."""
    fault = getattr(problem, "reason", None)
    if isinstance(fault, str):
        certificate = getattr(problem, "verify_message", "")
        return fault.replace("_", " ").lower() + (f" ({certificate})" if certificate else "")
    text = problem.strerror or str(problem) or "the system does not say why"
    return text[:1].lower() + text[1:]


def _words(text: str) -> str:
    """What a ValueError means; its own text where this package raised it."""
    if text.startswith("invalid literal for int()"):
        return f"{text.rpartition(': ')[2]} is no whole number"
    if text.startswith("Exceeds the limit"):
        return "a number has too many digits"
    if "values to unpack" in text or "update sequence" in text or "object has no attribute" in text:
        return "it does not have the parts that it should"
    return text
