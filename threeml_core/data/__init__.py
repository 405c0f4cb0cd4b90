"""Text to token blocks: corpora, tokenizer, packed blocks on disk. No torch model code here."""

from threeml_core.data.blocks import TokenBlocks, epoch_order
from threeml_core.data.corpus import load_corpus
from threeml_core.data.prepare import PreparedData, prepare_data
from threeml_core.data.tokenizer import load_tokenizer, train_tokenizer

__all__ = [
    "PreparedData",
    "TokenBlocks",
    "epoch_order",
    "load_corpus",
    "load_tokenizer",
    "prepare_data",
    "train_tokenizer",
]
