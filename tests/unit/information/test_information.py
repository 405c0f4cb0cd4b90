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

from threeml_core.config import make_config
from threeml_core.foundation.errors import ParameterError
from threeml_core.information.bias import bias_points, bias_study
from threeml_core.information.clustering import Array, _cluster, _OnCPU, _OnTorch, cluster
from threeml_core.information.estimate import (
    JointCounts,
    corrected_information,
    estimate_layer,
    grassberger_entropy,
    plug_in_entropy,
)
from threeml_core.information.findings import first_block, first_layers
from threeml_core.information.measure import layer_mutual_information
from threeml_core.information.mixtures import Mixture
from threeml_core.reporting import bias_table, information_table, plot_bias, plot_information, statement_table
from threeml_core.runs.record import RunRecord

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
        for each in (20, 50, 100, 200, 500, 700, 1000, 1500, 2000):
            rows, tokens = pairs(joint, 200 * each, each)
            found = estimate_layer([rows], tokens, 0, 1)
            too_few += not found.has_enough_states
            if found.has_enough_states:
                distances.append(abs(found.value - true_information(joint)) / found.error)
    assert len(distances) > 40 and too_few > 15
    assert np.mean(np.array(distances) < 2) > 0.95
    assert max(distances) < 4


def zipf_table(clusters: int, tokens: int, exponent: float, informative: float, sharpness: float) -> np.ndarray:
    """Tokens by Zipf's law; a share of the clusters prefers some of them, the others tell nothing."""
    rng = np.random.default_rng(0)
    prior = 1 / np.arange(1, tokens + 1) ** exponent
    prior /= prior.sum()
    rows = np.tile(prior, (clusters, 1))
    some = int(informative * clusters)
    rows[:some] = rng.dirichlet(prior * sharpness, some)
    return rng.dirichlet(np.full(clusters, 2.0))[:, None] * rows


@pytest.mark.parametrize(
    ("tokens", "exponent", "informative", "sharpness"),
    [(1000, 1.0, 0.5, 5.0), (250, 1.0, 0.5, 30.0), (1000, 1.3, 0.7, 2.0), (1000, 1.3, 0.3, 10.0), (250, 1.0, 0.0, 1.0)],
)
def test_the_bias_is_small_where_there_are_enough_states(
    tokens: int, exponent: float, informative: float, sharpness: float
) -> None:
    """Below 2% of the tokens' entropy wherever the guard lets an estimate pass; the first table has 21% at 2.2."""
    joint = zipf_table(100, tokens, exponent, informative, sharpness)
    truth, entropy = true_information(joint), scipy.stats.entropy(joint.sum(0))
    passed = 0
    for each in (100, 200, 400, 800, 1600):
        found = [
            estimate_layer([rows], columns, 0, 1) for rows, columns in (pairs(joint, 100 * each, s) for s in (1, 2))
        ]
        if all(layer.has_enough_states for layer in found):
            passed += 1
            assert abs(np.mean([layer.value for layer in found]) - truth) < 0.02 * entropy
    assert passed, "the guard lets something pass"


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
    points = bias_points(100, 25, (0.0, 0.5), (5, 50, 500), 0)
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
    parameters: dict = {"architecture": architecture, "mask_rate": 0.4, "num_hidden_layers": len(values) - 1}
    parameters["seed"] = changes.pop("seed", 0)
    data = {"run": name, "sample": "a", "on_unigram_plateau": False, **changes}
    empty: dict = {"identity": {}, "sources": {}, "flops": {}, "timing": {}, "environment": {}, "files": {}}
    return RunRecord("mutual_information", name, parameters=parameters, metrics={"layers": layers}, data=data, **empty)


def column(name: str, *records: RunRecord) -> list[str]:
    table = statement_table(records)
    return [row[table.columns.index(name)] for row in table.rows]


def seeds_of(architecture: str, values: list[float], spread: float = 0.0, error: float = 0.001, **changes):
    """Three pre-training seeds, whose last value is `spread` apart from the one before."""
    return [
        record(
            architecture,
            [*values[:-1], values[-1] + spread * s],
            error,
            seed=s,
            name=f"{architecture}-40-0{s}",
            **changes,
        )
        for s in range(3)
    ]


VANILLA = [0.0, 0.9, 0.95, 0.95, 1.0]


@pytest.mark.parametrize(
    ("values", "error", "verdict", "reason"),
    [
        (VANILLA, 0.01, "supported", ""),
        ([0.0, 0.3, 0.5, 0.9, 1.0], 0.01, "contradicted", ""),
        ([0.0, 0.52, 0.6, 0.9, 1.0], 0.02, "undecided", ""),  # 52% ± 4.4%
        ([0.0, 0.52, 0.6, 0.9, 1.0], 0.001, "supported", ""),
        ([0.5, 0.52, 0.51, 0.5, 0.51], 0.01, "undecided", "the last layer holds no more than the embedding"),
        ([0.0, 1.0], 0.01, "not run", "no vanilla run with the embedding, the first quarter and the last layer"),
    ],
)
def test_the_statement_on_vanilla(values: list[float], error: float, verdict: str, reason: str) -> None:
    records = seeds_of("vanilla", values, error=error)
    assert (column("Verdict", *records)[0], column("Why not", *records)[0]) == (verdict, reason)


@pytest.mark.parametrize(
    ("value", "spread", "error", "verdict"),
    [
        (1.3, 0.0, 0.01, "supported"),
        (0.95, 0.0, 0.01, "supported"),
        (0.85, 0.0, 0.01, "contradicted"),
        (0.92, 0.0, 0.01, "undecided"),  # 92% ± 2.7% by the error of measurement alone
        (0.92, 0.0, 0.001, "supported"),
        (0.92, 0.02, 0.001, "undecided"),  # by the spread over seeds alone
    ],
)
def test_the_statement_on_3ml_is_the_claims_finding(value: float, spread: float, error: float, verdict: str) -> None:
    """One rule: what page 07 shows is what C8 is judged by."""
    records = [*seeds_of("vanilla", VANILLA, error=error), *seeds_of("self", [0.0, value], spread, error)]
    assert column("Verdict", *records) == ["supported", verdict] == ["supported", first_block("self", records).verdict]


def test_one_pre_training_seed_decides_nothing() -> None:
    """However small the error of measurement: another seed may give another value."""
    records = [record("vanilla", VANILLA, 1e-6), record("self", [0.0, 0.5], 1e-6)]
    assert column("Verdict", *records) == ["undecided"] * 2
    assert column("Why not", *records) == ["one pre-training seed: no interval"] * 2


def test_the_error_of_a_share_is_that_of_repeated_measurements() -> None:
    """By the delta method: as large as the spread of shares of noisy layers, also of a small share of a noisy whole."""
    rng = np.random.default_rng(0)
    noisy = rng.normal([0.1, 0.7, 1.1], 0.02, (20_000, 3))
    spread = np.std((noisy[:, 1] - noisy[:, 0]) / (noisy[:, 2] - noisy[:, 0]))
    assert first_layers([record("vanilla", [0.1, 0.7, 0.8, 0.9, 1.1], 0.02)]).error == pytest.approx(spread, rel=0.03)
    for block in (0.3, 0.9, 1.4):
        shares = rng.normal(block, 0.02, 20_000) / rng.normal(1.1, 0.02, 20_000)
        records = [record("vanilla", [0.0, 0.5, 1.0, 1.0, 1.1], 0.02), record("self", [0.0, block], 0.02)]
        assert first_block("self", records).error == pytest.approx(np.std(shares), rel=0.03)


def test_what_gives_no_verdict() -> None:
    vanilla = seeds_of("vanilla", VANILLA)
    good = seeds_of("self", [0.0, 1.0])
    assert column("Verdict", *good) == ["not run"] * 2
    assert column("Verdict", *vanilla) == ["supported", "not run"]
    for changes, verdict, reason in (
        ({"sample": "b"}, "not run", "no 3ML run beside a vanilla one with the same [MASK]s"),
        ({"on_unigram_plateau": True}, "undecided", "on the unigram plateau"),
        ({"pairs_per_cell": 4.9}, "undecided", "too few states"),
        ({"seeds": 1}, "undecided", "one k-means seed: no error"),
    ):
        judged = [*vanilla, *seeds_of("self", [0.0, 1.0], **changes)]
        assert (column("Verdict", *judged)[1], column("Why not", *judged)[1]) == (verdict, reason)
        if "sample" not in changes:
            assert column("Why not", *seeds_of("vanilla", VANILLA, **changes))[0] == reason
    nothing = [*seeds_of("vanilla", [0.0, 0.0, 0.0, 0.0, 0.01], error=0.02), *good]
    assert column("Why not", *nothing)[1] == "vanilla's last layer says nothing about the tokens"
    assert column("Verdict", *vanilla, *seeds_of("self", [0.0]))[1] == "not run"


def test_the_latest_run_of_a_seed_counts() -> None:
    good, better = (record("vanilla", [0.0, v / 2, v], name=f"vanilla-40-{n}") for n, v in (("aa", 1.0), ("bb", 2.0)))
    one = record("self", [0.0, 1.0])
    assert first_block("self", [better, good, one]).values == (1.0,)
    assert first_block("self", [good, better, one]).values == (0.5,)


def test_runs_of_several_seeds_are_paired_by_seed() -> None:
    """Seed 1 gives twice as much with both models: the shares are alike."""
    records = [
        record(a, [0.0, 0.9 * (s + 1), s + 1.0], seed=s, name=f"{a}-40-0{s}")
        for s in (0, 1)
        for a in ("self", "vanilla")
    ]
    assert first_block("self", records).values == pytest.approx((0.9, 0.9))
    assert column("Each seed", *records) == ["90%, 90%"] * 2


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


# -- the bias of the estimates, recorded ----------------------------------------------------------------------


def test_the_bias_study_is_recorded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page shows comes from the record: another machine's last digits change nothing."""
    small = {"clusters": 20, "tokens": 5, "couplings": (0.0, 1.0), "states_per_cluster": (5, 50), "seed": 0}
    monkeypatch.setattr("threeml_core.information.bias._STUDY", small)
    config = make_config({"preset": "tiny", "runs_dir": str(tmp_path)})
    found = bias_study(config, lambda line: None)
    monkeypatch.setattr("threeml_core.information.bias.bias_points", lambda **_: pytest.fail("it is there already"))
    for again in (bias_study(config), bias_study(config.replace(plan_only=True))):
        assert bias_table(again).rows == bias_table(found).rows and plot_bias(again).alt == plot_bias(found).alt
    assert found.run_id in bias_table(found).caption, "a report takes the records that its pages name"
    assert [row[1] for row in bias_table(found).rows] == ["100", "1,000"] * 2


def test_records_without_a_bias_study_say_so(tmp_path: Path) -> None:
    """A report made from records runs nothing."""
    config = make_config({"preset": "tiny", "runs_dir": str(tmp_path), "plan_only": True})
    record = bias_study(config)
    assert record is None and not list(tmp_path.rglob("*.json"))
    for shown in (bias_table(record), plot_bias(record)):
        assert shown.rows == [["not run: this report's records hold no run of stage bias"]]
