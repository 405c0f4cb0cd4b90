"""Errors a user can act on: one line that says what is wrong, what was expected and what to do."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from threeml_core.foundation.processes import on_sigterm


class StudyError(Exception):
    """Bad input or a damaged file; the message is the whole report, a traceback adds nothing."""

    exit_status = 2

    def _render_traceback_(self, *given: object, **named: object) -> list[str]:
        """What IPython shows for this error in a notebook: the line alone."""
        return [f"{type(self).__name__}: {self}"]


class ParameterError(StudyError):
    """A parameter is unknown, has the wrong type or is out of range."""


class CorpusError(StudyError):
    """A corpus or tokenizer is missing, empty or unreadable."""


class DamagedFileError(StudyError):
    """A file of a run folder is truncated or was changed."""


class CheckpointError(StudyError):
    """An encoder to fine-tune is missing, has no weights, or does not fit its tokenizer or the task."""


class TrainingError(StudyError):
    """Training cannot go on, for example because a GPU's memory is not enough."""


class NotFiniteError(TrainingError):
    """A loss or a parameter is not finite; the last good state is kept, as the cause may be the machine's."""


class DivergedError(TrainingError):
    """The model has come to predict worse than a uniform guess."""


class HubError(StudyError):
    """The Hugging Face hub cannot be asked, or did not take what was pushed."""


class LockedError(StudyError):
    """Another process is writing the same thing."""


class BusyError(StudyError):
    """The machine is too busy, or too noisy, for a time to mean anything."""

    exit_status = 75  # EX_TEMPFAIL of sysexits.h: the same command may succeed later


class Preempted(StudyError):
    """SIGTERM has come, as schedulers send it before they take a host away; all is saved that was to be."""

    exit_status = 128 + signal.SIGTERM


def command_line(main: Callable[[], None]) -> Callable[[], None]:
    """Wrap a command so that a `StudyError` becomes one line on stderr and a non-zero exit status; SIGTERM too."""

    def stop(*signal_and_frame: object) -> NoReturn:
        raise Preempted("stopped by SIGTERM; the same command goes on with what is missing")

    @functools.wraps(main)
    def run() -> None:
        try:
            try:
                with on_sigterm(stop):
                    main()
            finally:
                sys.stdout.flush()
        except StudyError as error:
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(error.exit_status) from None
        except KeyboardInterrupt:
            print("interrupted: the same command resumes from the last saved state", file=sys.stderr)
            raise SystemExit(130) from None
        except BrokenPipeError:  # who reads has seen enough, as `head`; the end flushes once more
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(128 + signal.SIGPIPE) from None

    return run
