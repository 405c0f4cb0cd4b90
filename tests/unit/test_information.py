"""Mutual information: the estimates against closed forms, and what they are computed from."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.cluster import MiniBatchKMeans
from sklearn.metrics import mutual_info_score

from threeml_core.clustering import Array, _cluster, _OnCPU, _OnTorch, cluster
from threeml_core.errors import ParameterError
from threeml_core.information import (
    JointCounts,
    corrected_information,
    estimate_layer,
    grassberger_entropy,
    plug_in_entropy,
)
from threeml_core.mixtures import Mixture
from threeml_core.mutual_information import bias_study, layer_mutual_information
from threeml_core.reporting import information_table, plot_information, statement_table
from threeml_core.results import RunRecord

CPU = torch.device("cpu")


def pairs(joint: np.ndarray, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """`size` draws of (row, column) from a table of probabilities."""
    cells = np.random.default_rng(seed).choice(joint.size, size, p=joint.ravel() / joint.sum())
    return cells // joint.shape[1], cells % joint.shape[1]


def true_information(joint: np.ndarray) -> float:
    joint = joint / joint.sum()
    product = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    some = joint > 0
    return float((joint[some] * np.log(joint[some] / product[some])).sum())


def plug_in(rows: np.ndarray, columns: np.ndarray) -> float:
    return JointCounts(rows, columns).plug_in_information()


def sparse_table(rows: int = 200, columns: int = 250, sharpness: float = 50.0) -> np.ndarray:
    """Rows of unequal weight that prefer a few of the Zipf-distributed columns, as clusters and tokens do."""
    rng = np.random.default_rng(0)
    prior = 1 / np.arange(1, columns + 1)
    prior /= prior.sum()
    return rng.dirichlet(np.ones(rows))[:, None] * rng.dirichlet(prior * sharpness, rows)


# -- estimates from counts ------------------------------------------------------------------------------------


def test_plug_in_is_the_information_of_the_frequencies() -> None:
    table = np.array([[30, 10, 0], [5, 5, 50]])
    rows, columns = (np.repeat(axis.ravel(), table.ravel()) for axis in np.indices(table.shape))
    assert plug_in(rows, columns) == pytest.approx(true_information(table), rel=1e-12)
    assert plug_in(rows, columns) == pytest.approx(mutual_info_score(rows, columns), rel=1e-9)
    assert plug_in_entropy(table.sum(0)) == pytest.approx(scipy.stats.entropy(table.sum(0)), rel=1e-12)
    assert plug_in(rows, rows) == pytest.approx(plug_in_entropy(table.sum(1)), rel=1e-12)


def test_grassberger_follows_its_recurrence() -> None:
    """G(1) = -γ - ln 2, G(2) = 2 - γ - ln 2, G(2n + 1) = G(2n), G(2n + 2) = G(2n) + 2/(2n + 1)."""
    g = {1: -np.euler_gamma - math.log(2), 2: 2 - np.euler_gamma - math.log(2)}
    for n in range(1, 20):
        g[2 * n + 1] = g[2 * n]
        g[2 * n + 2] = g[2 * n] + 2 / (2 * n + 1)
    counts = np.arange(1, 40)
    total = counts.sum()
    expected = math.log(total) - sum(n * g[n] for n in counts.tolist()) / total
    assert grassberger_entropy(counts) == pytest.approx(expected, rel=1e-12)


def test_the_corrected_estimate_is_nearer_than_plug_in_and_than_subtracting_the_floor() -> None:
    """At the paper's 500 states a row it is within 2%, where the plug-in estimate is more than 5% too high."""
    joint = sparse_table()
    truth = true_information(joint)
    rows, columns = pairs(joint, 500 * len(joint), 1)
    raw, (corrected, _) = plug_in(rows, columns), corrected_information(rows, columns)
    floor = plug_in(rows, np.random.default_rng(0).permutation(columns))
    assert corrected == pytest.approx(truth, rel=0.02)
    assert raw > 1.05 * truth
    assert abs(corrected - truth) < 0.2 * min(abs(raw - truth), abs(raw - floor - truth))


def test_the_truth_is_within_two_errors_where_there_are_enough_states() -> None:
    """From much information to none, from few states to many: as often as two errors promise, and never beyond four."""
    distances, too_few = [], 0
    for columns, sharpness in itertools.product((100, 1000), (5.0, 20.0, 100.0, 500.0, 2000.0, None)):
        joint = sparse_table(200, columns, sharpness or 1.0)
        if sharpness is None:
            joint = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
        for each in (10, 20, 50, 100, 200, 500):
            rows, tokens = pairs(joint, 200 * each, each)
            found = estimate_layer([rows], tokens, 0, 1)
            too_few += not found.has_enough_states
            if found.has_enough_states:
                distances.append(abs(found.value - true_information(joint)) / found.error)
    assert len(distances) > 40 and too_few > 15
    assert np.mean(np.array(distances) < 2) > 0.95
    assert max(distances) < 4


def test_the_floor_is_what_theory_says() -> None:
    """For independent pairs the plug-in estimate has mean (R - 1)(C - 1)/2N to first order."""
    rng = np.random.default_rng(0)
    size, r, c = 100_000, 20, 30
    rows, columns = rng.integers(r, size=size), rng.integers(c, size=size)
    expected = (r - 1) * (c - 1) / (2 * size)
    found = np.mean([plug_in(rows, rng.permutation(columns)) for _ in range(20)])
    assert found == pytest.approx(expected, rel=0.1)


def test_standard_error_is_the_deviation_over_samples() -> None:
    joint = sparse_table(20, 10)
    found = [plug_in(*pairs(joint, 5000, seed)) for seed in range(200)]
    assert JointCounts(*pairs(joint, 5000, 0)).standard_error() == pytest.approx(np.std(found), rel=0.2)


def test_estimate_layer_does_not_mind_the_order_of_the_states() -> None:
    rows, columns = pairs(sparse_table(), 20_000, 0)
    order = np.lexsort((columns, rows))
    a = estimate_layer([rows], columns, 0, 4)
    b = estimate_layer([rows[order]], columns[order], 0, 4)
    assert a.plug_in == pytest.approx(b.plug_in, rel=1e-12)
    assert a.value == pytest.approx(b.value, abs=0.02)
    assert 0 < a.floor[0] < a.plug_in[0] < a.entropy and a.states == 20_000


# -- mixtures: the whole way from states ----------------------------------------------------------------------


def test_the_closed_form_of_a_mixture() -> None:
    mixture = Mixture(20, 10, 0.3)
    joint = np.full((20, 10), 0.7 / 10)
    joint[np.arange(20), np.arange(20) % 10] += 0.3
    assert mixture.mutual_information == pytest.approx(true_information(joint), rel=1e-12)
    assert Mixture(20, 10, 0.0).mutual_information == pytest.approx(0, abs=1e-12)
    assert Mixture(20, 10, 1.0).mutual_information == pytest.approx(math.log(10), rel=1e-12)


@pytest.mark.parametrize("coupling", [0.0, 0.3, 0.7, 1.0])
def test_layer_mutual_information_is_within_two_percent_of_the_truth(coupling: float) -> None:
    """0, partial, maximal; both estimates at 5,000 states a cluster, the corrected one at the paper's 500."""
    mixture = Mixture(50, 50, coupling)
    tolerance = 0.02 * (mixture.mutual_information if coupling else mixture.entropy)
    for clusters, each, estimates in ((600, 500, ("corrected",)), (100, 5000, ("corrected", "plug_in"))):
        states, tokens = mixture.sample(clusters * each, seed=1)
        found = layer_mutual_information(states, tokens, clusters, seeds=(0, 1))
        for name in estimates:
            assert getattr(found, name) == pytest.approx([mixture.mutual_information] * 2, abs=tolerance), name
        assert found.entropy == pytest.approx(mixture.entropy, abs=0.01)


def test_the_bias_falls_with_the_number_of_states() -> None:
    points = bias_study(clusters=100, tokens=25, couplings=(0.0, 0.5), states_per_cluster=(5, 50, 500))
    for coupling in (0.0, 0.5):
        here = [point for point in points if point.coupling == coupling]
        few, more, many = (point.found.plug_in[0] - point.truth for point in here)
        assert few > 3 * more > 9 * many > 0
        for point, excess in zip(here, (few, more, many), strict=True):
            assert abs(point.found.value - point.truth) < 0.7 * excess
        assert here[-1].found.value == pytest.approx(here[-1].truth, abs=0.02)
        assert not here[0].found.has_enough_states and here[-1].found.has_enough_states


# -- clustering -----------------------------------------------------------------------------------------------


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
        ours, theirs = (_cluster(Array(states), 200, seed, 2, 1024, CPU, back_end) for back_end in (_OnCPU, _OnTorch))
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
        labels = _cluster(Array(states), 50, 0, 1, 100, CPU, back_end)
        for row in range(7):
            assert set(labels[row::7]).isdisjoint(labels[(row + 1) % 7 :: 7])


def test_fewer_states_than_clusters() -> None:
    with pytest.raises(ParameterError, match="clusters=100, but there are only 60 states"):
        cluster(Array(np.zeros((60, 4))), 100, 0, 1, 1000)
    assert len(set(cluster(Array(np.eye(60)), 60, 0, 1, 1000).tolist())) == 60
    with pytest.raises(ParameterError, match="expected a token for each state"):
        layer_mutual_information(np.zeros((60, 4)), np.zeros(59, int), 10)


# -- the paper's statements -----------------------------------------------------------------------------------


def record(architecture: str, values: list[float], error: float = 0.01, **changes) -> RunRecord:
    """A run of stage `mutual_information` whose layers have these corrected values, each known to one `error`."""
    layer = {"width": 8, "states": 1000, "entropy": 4.0, "floor": [0.1, 0.1], "clusters_used": [10, 10]}
    layer |= {"pairs_per_cell": [changes.pop("pairs_per_cell", 5.0)] * 2, "standard_error": [error] * 2}
    layer |= {"extrapolation": [0.0, 0.0]}
    layers = [
        {**layer, "layer": number, "plug_in": [value + 0.1] * 2, "corrected": [value] * changes.get("seeds", 2)}
        for number, value in enumerate(values)
    ]
    name = changes.pop("name", f"{architecture}-40-0123456789")
    parameters = {"architecture": architecture, "mask_rate": 0.4, "num_hidden_layers": len(values) - 1}
    parameters["seed"] = changes.pop("seed", 0)
    data = {"run": name, "sample": "a", "on_unigram_plateau": False, **changes}
    empty: dict = {"identity": {}, "sources": {}, "flops": {}, "timing": {}, "environment": {}, "files": {}}
    return RunRecord("mutual_information", name, parameters=parameters, metrics={"layers": layers}, data=data, **empty)


def verdicts(*records: RunRecord) -> list[str]:
    table = statement_table(records)
    return [row[table.columns.index("Verdict")] for row in table.rows]


@pytest.mark.parametrize(
    ("values", "error", "verdict"),
    [
        ([0.0, 0.9, 0.95, 0.95, 1.0], 0.01, "holds"),
        ([0.0, 0.3, 0.5, 0.9, 1.0], 0.01, "does not hold"),
        ([0.0, 0.52, 0.6, 0.9, 1.0], 0.01, "undecided"),  # 52% ± 2.4%
        ([0.0, 0.52, 0.6, 0.9, 1.0], 0.001, "holds"),
        ([0.5, 0.52, 0.51, 0.5, 0.51], 0.01, "undecided: the last layer holds no more than the embedding"),
        ([0.0, 1.0], 0.01, "not measured: it needs layers 0, 1 and 1"),
    ],
)
def test_the_statement_on_vanilla(values: list[float], error: float, verdict: str) -> None:
    assert verdicts(record("vanilla", values, error))[0] == verdict


@pytest.mark.parametrize(
    ("value", "error", "verdict"),
    [
        (1.3, 0.01, "holds"),
        (0.95, 0.01, "holds"),
        (0.85, 0.01, "does not hold"),
        (0.91, 0.01, "undecided"),  # 91% ± 2.7%
        (0.91, 0.001, "holds"),
    ],
)
def test_the_statement_on_3ml(value: float, error: float, verdict: str) -> None:
    vanilla = record("vanilla", [0.0, 0.9, 0.95, 0.95, 1.0], error)
    assert verdicts(vanilla, record("self", [0.0, value, 2.0], error)) == ["holds", verdict]


def test_the_error_of_a_share_is_that_of_repeated_measurements() -> None:
    """The interval printed is as wide as shares of noisy layers are spread."""
    rng = np.random.default_rng(0)
    noisy = rng.normal([0.1, 0.7, 1.1], 0.02, (20_000, 3))
    spread = np.std((noisy[:, 1] - noisy[:, 0]) / (noisy[:, 2] - noisy[:, 0]))
    table = statement_table([record("vanilla", [0.1, 0.7, 0.8, 0.9, 1.1], 0.02)])
    low, high = (
        int(part.rstrip("%")) for part in table.rows[0][table.columns.index("±2 standard errors")].split(" to ")
    )
    assert high - low == pytest.approx(100 * 4 * spread, abs=1.1)


def test_what_gives_no_verdict() -> None:
    vanilla = record("vanilla", [0.0, 0.9, 0.95, 0.95, 1.0])
    good = record("self", [0.0, 1.0])
    assert verdicts(good) == ["not measured: no vanilla run"] * 2
    assert verdicts(vanilla) == ["holds", "not measured: no 3ML run"]
    for changes, expected in (
        ({"sample": "b"}, "not comparable: the vanilla model was asked about other"),
        ({"on_unigram_plateau": True}, "undecided: a model that has not left the unigram plateau"),
        ({"pairs_per_cell": 1.9}, "undecided: too few states"),
        ({"seeds": 1}, "undecided: with one k-means seed"),
    ):
        assert verdicts(vanilla, record("self", [0.0, 1.0], **changes))[1].startswith(expected)
        if "sample" not in changes:
            assert verdicts(record("vanilla", [0.0, 0.9, 0.95, 0.95, 1.0], **changes))[0].startswith(expected)
    assert verdicts(vanilla, record("self", [0.0]))[1] == "not measured: it needs decoder layer 1 and vanilla's layer 4"


def test_runs_of_one_architecture_have_their_own_names_and_verdicts() -> None:
    good, better = (record("vanilla", [0.0, v / 2, v], name=f"vanilla-40-{n}") for n, v in (("aa", 1.0), ("bb", 2.0)))
    table = statement_table([better, good, record("self", [0.0, 1.0])])
    against = [(row[table.columns.index("Against")], row[table.columns.index("Verdict")]) for row in table.rows[2:]]
    assert against == [("vanilla-40% bb", "does not hold"), ("vanilla-40% aa", "holds")]


def test_runs_of_several_seeds_are_paired_by_seed() -> None:
    records = [record(a, [0.0, 1.0, 1.0], seed=s, name=f"{a}-40-0{s}") for s in (0, 1) for a in ("vanilla", "self")]
    table = statement_table(records)
    named = [(row[table.columns.index("Model")], row[table.columns.index("Against")]) for row in table.rows[2:]]
    assert named == [(f"3ML_self-40%, seed {seed}", f"vanilla-40%, seed {seed}") for seed in (0, 1)]


def test_values_from_too_few_states_are_marked() -> None:
    table = information_table([record("self", [0.0, 0.5], pairs_per_cell=1.5)])
    assert [row[table.columns.index("Corrected (nats)")] for row in table.rows][1] == "0.500 (too few states)"
    figure = plot_information([record("self", [0.0, 0.5], pairs_per_cell=1.5), record("vanilla", [0.0, 0.5, 0.6])])
    assert "Ringed values have too few states" in figure.alt
    assert "Ringed" not in plot_information([record("self", [0.0, 0.5])]).alt


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
