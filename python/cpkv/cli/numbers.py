"""Options that take several numbers."""

from cpkv.errors import ConfigError


def numbers(text: str, option: str, example: str) -> tuple[int, ...]:
    """Return numbers that have commas between them.

    Raises:
        ConfigError: They are none; it shows the example.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        message = f"{option}: got {text!r}, want numbers with commas between them, such as {example}"
        raise ConfigError(message) from None
