"""Clustering of states, measured: against scikit-learn by the book, and memory and time as the states grow.

    python tests/measurements/clustering_benchmark.py speed --states 100000 --width 256 --clusters 1000
    python tests/measurements/clustering_benchmark.py growth --states 1000000 --width 1024 --clusters 1000
    python tests/measurements/clustering_benchmark.py gpu --states 5000000 --width 1024 --clusters 10000

`speed` takes turns between `cluster` and scikit-learn's MiniBatchKMeans with its defaults (k-means++) on the same
states (in float16, as they are stored, and in float32), and compares the mutual information found. `growth` collects
states through `collect_states` and clusters them from disk, each size in a process of its own; the model is a stub, so
the time is that of writing and clustering. `gpu` clusters one layer in a GPU's memory. States are a token's vector plus
a context's, with noise: no clusters stand apart.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.cluster import MiniBatchKMeans
from torch import Tensor, nn

from threeml_core.config import make_config
from threeml_core.data.prepare import PreparedData
from threeml_core.data.sequences import TokenSequences
from threeml_core.information.clustering import cluster
from threeml_core.information.estimate import JointCounts, corrected_information
from threeml_core.information.measure import layer_mutual_information
from threeml_core.information.states import Forward, collect_states, draw_sample
from threeml_core.masking import CorruptedBatch
from threeml_core.training.device import peak_memory

TOKENS, CONTEXTS, BLOCK = 1000, 200, 128


class States(nn.Module):
    """Stands for a model: the state of a [MASK] is a vector of its token, one of its context, and noise."""

    def __init__(self, width: int, device: torch.device | str = "cpu") -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.tokens = nn.Parameter(torch.randn(TOKENS + 5, width, generator=generator).to(device))
        self.contexts = nn.Parameter(torch.randn(CONTEXTS, width, generator=generator).to(device))

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.tokens.device

    @torch.no_grad()
    def of(self, tokens: Tensor) -> Tensor:
        """(...,) ids -> (..., width)."""
        contexts = torch.randint(CONTEXTS, tokens.shape, device=self.device)
        return (
            self.tokens[tokens]
            + self.contexts[contexts]
            + torch.randn(*tokens.shape, self.tokens.shape[1], device=self.device)
        )

    def mask_states(self, batch: CorruptedBatch, final_norm: bool = True) -> list[Tensor]:
        """As the models' own."""
        return [self.of(batch.labels.gather(1, batch.mask_idx))]


def zipf(size: int, seed: int) -> np.ndarray:
    """(size,) token ids, the k-th most frequent with probability proportional to 1/k; ids below 5 are special."""
    shares = 1 / np.arange(1, TOKENS + 1)
    return 5 + np.random.default_rng(seed).choice(TOKENS, size, p=shares / shares.sum())


def speed(options: argparse.Namespace) -> None:
    """Ours and scikit-learn by the book, in turns."""
    torch.manual_seed(0)
    tokens = zipf(options.states, 0)
    states = States(options.width).of(torch.from_numpy(tokens)).half().numpy()
    single = states.astype(np.float32)
    variants = {
        "this package": lambda seed: cluster_array(states, options, seed),
        "by the book, float32": lambda seed: MiniBatchKMeans(options.clusters, random_state=seed).fit(single).labels_,
        "by the book, as stored": lambda seed: MiniBatchKMeans(options.clusters, random_state=seed).fit(states).labels_,
    }
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    values: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    for seed in range(options.seeds):
        for name, work in variants.items():
            started = time.perf_counter()
            labels = work(seed)
            seconds[name].append(time.perf_counter() - started)
            values[name].append(
                (JointCounts(labels, tokens).plug_in_information(), corrected_information(labels, tokens)[0])
            )
            print(f"seed {seed}, {name}: {seconds[name][-1]:.2f} s, {values[name][-1][1]:.4f} nats", flush=True)
    for name in variants:
        plug_in, corrected = np.array(values[name]).T
        print(
            f"{name}: {np.median(seconds[name]):.2f} s; plug-in {plug_in.mean():.4f} (spread {np.ptp(plug_in):.4f}), "
            f"corrected {corrected.mean():.4f} (spread {np.ptp(corrected):.4f}) nats"
        )
    for name in list(variants)[1:]:
        ratios = np.array(seconds[name]) / np.array(seconds["this package"])
        print(f"{name} against this package: {np.median(ratios):.1f}, from {ratios.min():.1f} to {ratios.max():.1f}")


def cluster_array(states: np.ndarray, options: argparse.Namespace, seed: int) -> np.ndarray:
    """With the parameters' defaults."""
    config = make_config({})
    return cluster(states, options.clusters, seed, config.num_kmeans_passes, config.kmeans_batch_size)


def growth(options: argparse.Namespace) -> None:
    """An eighth, a quarter, half and all of the states, each in its own process."""
    found = []
    for share in (8, 4, 2, 1):
        command = [sys.executable, __file__, "one", "--states", str(options.states // share)]
        command += ["--width", str(options.width), "--clusters", str(options.clusters)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        print(found[-1], flush=True)
    sizes, seconds = (np.array([row[key] for row in found], float) for key in ("states", "clustering_s"))
    slope = np.polyfit(np.log(sizes), np.log(seconds), 1)[0]
    print(f"clustering time grows as states^{slope:.2f}; peak memory {max(row['peak_MB'] for row in found):,.0f} MB")


def one(options: argparse.Namespace) -> None:
    """Collect and cluster one layer; a JSON line."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        blocks = Path(folder) / "train.bin"
        n_blocks = int(options.states / 40) + 1  # 50% corrupted, 80% of them [MASK]: 50 in a block
        ids = zipf(n_blocks * BLOCK, 1).astype(np.uint16).reshape(n_blocks, BLOCK)
        ids[:, 0], ids[:, -1] = 0, 2
        ids.tofile(blocks)
        np.save(Path(folder) / "train_counts.npy", np.bincount(ids.ravel(), minlength=TOKENS + 5))
        meta = {"mask_token_id": 4, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "data_id": "benchmark"}
        meta |= {"vocab_size": TOKENS + 5, "special_ids": [0, 1, 2, 3, 4]}
        text = TokenSequences(blocks, BLOCK, n_blocks, "uint16", 2)
        data = PreparedData(Path(folder), meta, text, text)
        given = {"states_per_layer": options.states, "mask_rate": 0.5, "sequence_length": BLOCK, "states_text": "train"}
        sample = draw_sample(make_config(given), data)
        before = time.perf_counter()
        (rows,) = collect_states(
            Forward(States(options.width), sample), [0], Path(folder) / "states", lambda _: None
        ).values()
        collected = time.perf_counter() - before
        memory = peak_memory(torch.device("cpu")) / 1e6
        before = time.perf_counter()
        found = layer_mutual_information(rows, sample.tokens, options.clusters, seeds=(0,))
        print(
            json.dumps(
                {
                    "states": found.states,
                    "file_MB": rows.path.stat().st_size / 1e6,
                    "collecting_s": round(collected, 1),
                    "clustering_s": round(time.perf_counter() - before, 1),
                    "peak_MB_collecting": round(memory),
                    "peak_MB": round(peak_memory(torch.device("cpu")) / 1e6),
                    "corrected": round(found.value, 4),
                }
            )
        )


def gpu(options: argparse.Namespace) -> None:
    """One layer in a GPU's memory, one k-means seed after the other."""
    torch.manual_seed(0)
    device = torch.device("cuda")
    tokens = zipf(options.states, 0)
    source = States(options.width, device)
    states = torch.empty(options.states, options.width, dtype=torch.float16, device=device)
    for rows, part in zip(states.split(65536), torch.from_numpy(tokens).split(65536), strict=True):
        rows[:] = source.of(part.to(device))
    for seed in range(options.seeds):
        torch.cuda.synchronize()
        before = time.perf_counter()
        found = layer_mutual_information(states, tokens, options.clusters, seeds=(seed,), device=device)
        seconds = time.perf_counter() - before
        print(
            f"{torch.cuda.get_device_name()}: seed {seed}, {seconds:.1f} s, corrected {found.value:.4f} nats",
            flush=True,
        )
    print(f"peak GPU memory {peak_memory(device) / 1e9:.1f} GB")


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"speed": speed, "growth": growth, "gpu": gpu, "one": one}
    parser.add_argument("part", choices=parts)
    parser.add_argument("--states", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--clusters", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    parts[options.part](options)


if __name__ == "__main__":
    main()
