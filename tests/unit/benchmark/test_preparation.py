"""Preparing text in both ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from threeml_core.benchmark.preparation import compare_preparation
from threeml_core.config import make_config
from threeml_core.data.prepare import prepare_data


def test_preparing_data_in_both_ways(corpus_file: Path, tmp_path: Path) -> None:
    """The same text: as many tokens, up to the blocks' own ends and what fills no block."""
    config = make_config({"corpus": str(corpus_file), "runs_dir": str(tmp_path), "benchmark_megabytes": 1})
    found = compare_preparation(config, prepare_data(config), lambda line: None)
    assert isinstance(found, dict)
    assert found["ours"].tokens == pytest.approx(found["run_mlm"].tokens, rel=0.1)
    assert all(way.cpu_seconds > 0 and way.peak_bytes >= 0 for way in found.values())


def test_a_prepared_corpus_has_no_text_to_prepare(corpus_file: Path, tmp_path: Path) -> None:
    config = make_config({"corpus": str(corpus_file), "runs_dir": str(tmp_path)})
    data = prepare_data(config)
    given = config.replace(corpus=str(data.folder))
    assert "prepared elsewhere" in str(compare_preparation(given, data, lambda line: None))
