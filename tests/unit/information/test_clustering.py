"""Mini-batch k-means against scikit-learn by the book; odd states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.cluster import MiniBatchKMeans
from sklearn.metrics import mutual_info_score

from threeml_core.foundation.errors import ParameterError
from threeml_core.information.clustering import Array, _OnCPU, _OnTorch, cluster
from threeml_core.information.measure import layer_mutual_information

CPU = torch.device("cpu")


def blurred(size: int = 20_000, width: int = 24, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """States without clear clusters: a token's vector, a context's, and noise."""
    rng = np.random.default_rng(seed)
    tokens, contexts = rng.zipf(1.3, size) % 100, rng.integers(30, size=size)
    vectors, places = np.random.default_rng(9).normal(size=(2, 100, width))
    states = vectors[tokens] + 0.7 * places[contexts] + 0.5 * rng.normal(size=(size, width))
    return states.astype(np.float16), tokens


def test_both_back_ends_give_the_same_clusters() -> None:
    states, tokens = blurred()
    for seed in range(2):
        ours, theirs = (cluster(Array(states), 200, seed, 2, 1024, CPU, back_end) for back_end in (_OnCPU, _OnTorch))
        assert (ours == theirs).mean() > 0.999
        assert mutual_info_score(ours, tokens) == pytest.approx(mutual_info_score(theirs, tokens), abs=2e-3)


@pytest.mark.gpu
def test_a_gpu_gives_the_same_information() -> None:
    states, tokens = blurred()
    on_gpu = layer_mutual_information(torch.from_numpy(states).cuda(), tokens, 200, device="cuda")
    on_cpu = layer_mutual_information(states, tokens, 200)
    assert on_gpu.value == pytest.approx(on_cpu.value, abs=2 * on_cpu.error)


def test_every_row_goes_to_its_nearest_centre() -> None:
    states, _ = blurred(3000)
    centres = torch.from_numpy(states[:50]).float()
    expected = torch.cdist(torch.from_numpy(states).double(), centres.double()).argmin(1).numpy()
    for back_end in (_OnCPU, _OnTorch):
        model = back_end(centres.clone())
        model.update(centres)  # each centre wins itself and stays
        assert (model.assign(torch.from_numpy(states).float()) == expected).mean() > 0.9995


def test_information_equals_that_of_scikit_learn_by_the_book() -> None:
    """MiniBatchKMeans with its defaults (k-means++) on the same states: equal within the spread over seeds."""
    states, tokens = blurred(40_000)
    ours = [mutual_info_score(cluster(Array(states), 400, seed, 1, 4096), tokens) for seed in range(4)]
    single = states.astype(np.float32)
    book = [mutual_info_score(MiniBatchKMeans(400, random_state=s).fit(single).labels_, tokens) for s in range(4)]
    assert abs(np.mean(ours) - np.mean(book)) < np.ptp(ours) + np.ptp(book)


def test_a_seed_decides_and_the_order_of_rows_does_not_matter_much() -> None:
    states, tokens = blurred()
    first = cluster(Array(states), 100, 3, 1, 1000)
    assert np.array_equal(first, cluster(Array(states), 100, 3, 1, 1000))
    assert not np.array_equal(first, cluster(Array(states), 100, 4, 1, 1000))
    order = np.argsort(tokens, kind="stable")
    in_order = cluster(Array(states[order]), 100, 3, 1, 1000)
    assert mutual_info_score(in_order, tokens[order]) == pytest.approx(mutual_info_score(first, tokens), rel=0.03)


def test_rows_that_are_all_alike() -> None:
    """Layer 0 holds a [MASK] embedding and a position: as many different rows as positions."""
    states = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float16)[np.arange(1000) % 7]
    for back_end in (_OnCPU, _OnTorch):
        labels = cluster(Array(states), 50, 0, 1, 100, CPU, back_end)
        for row in range(7):
            assert set(labels[row::7]).isdisjoint(labels[(row + 1) % 7 :: 7])


def test_fewer_states_than_clusters() -> None:
    with pytest.raises(ParameterError, match="clusters=100, but there are only 60 states"):
        cluster(Array(np.zeros((60, 4))), 100, 0, 1, 1000)
    assert len(set(cluster(Array(np.eye(60)), 60, 0, 1, 1000).tolist())) == 60
    with pytest.raises(ParameterError, match="expected a token for each state"):
        layer_mutual_information(np.zeros((60, 4)), np.zeros(59, int), 10)


def test_states_from_a_file_that_is_mapped_read_only(tmp_path: Path) -> None:
    """What `collect_states` leaves with keep_states can be loaded and looked at again."""
    states, tokens = blurred(2000)
    np.save(tmp_path / "layer.npy", states)
    mapped = np.load(tmp_path / "layer.npy", mmap_mode="r")
    for same in (mapped, torch.from_numpy(states)):
        found = layer_mutual_information(same, tokens, 20)
        assert found == layer_mutual_information(states, tokens, 20)


def test_states_that_are_not_finite() -> None:
    states, tokens = blurred(1000)
    states[500, 3] = np.inf
    with pytest.raises(ParameterError, match="a state is not a finite number"):
        layer_mutual_information(states, tokens, 10)
