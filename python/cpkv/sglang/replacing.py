"""Functions of SGLang that behave otherwise for a cache of cpkv, in the process of its scheduler."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

_MARK: Final = "_cpkv_replaces"


def replace(owner: Any, name: str, call: Callable[..., Any]) -> None:  # noqa: ANN401 - a class or a module of SGLang
    """Let `call` get what a function gets, behind the function that was there. Idempotent."""
    original = getattr(owner, name)
    if hasattr(original, _MARK):
        return

    @wraps(original)
    def replaced(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - SGLang's
        return call(original, *arguments, **named)

    setattr(replaced, _MARK, True)
    setattr(owner, name, replaced)
