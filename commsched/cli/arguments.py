"""Arguments that several commands read."""

from commsched.errors import CommschedError


def pairs(words: list[str], flag: str, form: str = "NAME=VALUE") -> dict[str, str]:
    """Split words of the form KEY=VALUE; `form` names the two in errors."""
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals and value):
            raise CommschedError(f"{flag} {word}: expected {form}")
        if key in found:
            raise CommschedError(
                f"{flag} {word}: {key!r} was given before, as {found[key]!r}; once is allowed"
            )
        found[key] = value
    return found
