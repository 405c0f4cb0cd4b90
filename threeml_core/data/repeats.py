"""Documents that occur twice: in the training text, or in it and in the validation text; in 8 bytes a document."""

from __future__ import annotations

import array
import hashlib

import numpy as np


class Repeats:
    """Notes documents, each known by the words of its first piece, however its lines are broken."""

    def __init__(self) -> None:
        self._train, self._validation = array.array("Q"), array.array("Q")

    def add(self, words: list[str], is_validation: bool) -> None:
        """A document, by the words of its first piece."""
        digest = hashlib.blake2b(" ".join(words).encode(), digest_size=8).digest()
        (self._validation if is_validation else self._train).append(int.from_bytes(digest, "big"))

    def repeated(self) -> int:
        """Training documents that repeat another one."""
        return len(self._train) - len(np.unique(np.frombuffer(self._train, np.uint64)))

    def also_in_training(self) -> int:
        """Validation documents that are training documents as well."""
        return int(np.isin(np.frombuffer(self._validation, np.uint64), np.frombuffer(self._train, np.uint64)).sum())
