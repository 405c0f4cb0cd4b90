"""The Hugging Face hub if it answers, else what its cache holds: a network that is not there is not waited for."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import constants
from huggingface_hub.utils import get_session

_SECONDS = 3.0  # for the hub to answer, and its name servers


@contextlib.contextmanager
def hub_or_cache(name: str | Path) -> Iterator[str]:
    """Inside, Hugging Face's libraries ask the hub or, if it does not answer, their cache; of a local folder nothing.

    Yields:
        Why the hub is not asked, for `hub_reason`; empty if it is, or if the environment says that it is not to be.
    """
    reason = "" if constants.HF_HUB_OFFLINE or os.path.isdir(name) else _unreachable()
    if not reason:
        yield ""
        return
    switches = ("huggingface_hub.constants", "datasets.config")
    modules: list[Any] = [sys.modules[name] for name in switches if name in sys.modules]
    before = [module.HF_HUB_OFFLINE for module in modules]
    try:
        for module in modules:
            module.HF_HUB_OFFLINE = True
        yield reason
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value


def hub_reason(error: Exception, offline: str) -> str:
    """Why something did not come, in part of a line, from the library's error and what `hub_or_cache` gave."""
    said = " ".join(str(error).split())
    said = f"{type(error).__name__}: {said[: 80 if offline else 200]}" if said else type(error).__name__
    return f"{offline}; nothing that fits in its cache, {said}" if offline else said


def _unreachable() -> str:
    """Why the hub does not answer; empty if it does, whatever it says."""
    found = [f"no answer from {constants.ENDPOINT} within {_SECONDS:.0f} s"]

    def ask() -> None:
        try:
            get_session().head(constants.ENDPOINT, timeout=_SECONDS)
            found.append("")
        except Exception as error:  # the clients' errors have no common base
            found.append(f"{constants.ENDPOINT} cannot be reached: {' '.join(str(error).split())[:100]}")

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_SECONDS)
    return found[-1]
