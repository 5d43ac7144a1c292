"""The way into the command line, and the ways out of it.

Exit codes: 0 done; 1 done, and the doctor has found what does not work; 2 bad input, told in one line
on standard error; 130 interrupted. Anything else is a bug and shows its traceback.
"""

import os
import signal
import sys
from types import FrameType
from typing import Final

BAD_INPUT: Final = 2
INTERRUPTED: Final = 130


def main() -> int:
    """Run the command that `sys.argv` names and return the exit code."""
    # While packages are imported, and at the end, an interrupt has nothing to clean up and would
    # leave a traceback of somebody else's.
    signal.signal(signal.SIGINT, _leave)
    # A reader that goes away ends the command quietly, as with any tool.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # A name that standard output cannot spell is no reason to fail.
    if sys.stdout is not None:
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    code = _run()
    signal.signal(signal.SIGINT, _leave)
    if code == INTERRUPTED:
        _say("interrupted")
    return code


def _run() -> int:
    import typer  # noqa: PLC0415 - see `main`

    from cpkv.cli.app import app  # noqa: PLC0415
    from cpkv.errors import CpkvError  # noqa: PLC0415

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = app(standalone_mode=False, prog_name="cpkv")
    except CpkvError as error:
        _say(str(error))
        return BAD_INPUT
    except typer.TyperException as error:
        _say(error.format_message())
        return BAD_INPUT
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def _leave(_number: int, _frame: FrameType | None) -> None:
    os.write(2, b"cpkv: interrupted\n")
    os._exit(INTERRUPTED)


def _say(message: str) -> None:
    one_line = " ".join(message.split())
    print(f"cpkv: {one_line}", file=sys.stderr)  # noqa: T201 - standard error is for people
