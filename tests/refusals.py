"""What a user's file may hold to do harm, and what an error may say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from threeml_core.foundation.errors import StudyError


def one_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    """An error's text, which has no second line."""
    assert isinstance(error.value, StudyError) and "\n" not in str(error.value)
    return str(error.value)


def change(path: Path, **values: object) -> None:
    """Replace values of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


class Payload:
    """Unpickled, it leaves a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)
