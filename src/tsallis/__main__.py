"""The command `tsallis`, which is also `python -m tsallis`."""

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command; Ctrl-C prints one line and exits with status 130, also during slow imports."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    from tsallis.toolkit.cli import main as run

    run()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but exit at once during an import: an exception there can abort the process."""
    specs = [getattr(sys.modules.get(name), "__spec__", None) for name in ("torch", "tsallis.toolkit.cli")]
    if any(getattr(spec, "_initializing", False) for spec in specs):
        os.write(2, b"tsallis: interrupted\n")
        os._exit(130)
    signal.default_int_handler(number, frame)


if __name__ == "__main__":
    main()
