"""Cost of a Bayesian prediction with a sampled head, compared with a plain pass and full sampling.

    python benchmarks/bayesian.py [--device cuda] [--network resnet18] [--view 224] [--samples 100]

All in one process, alternating, best of several. Sampling the whole network is plain Monte Carlo dropout
with one pass per sample; it is timed on a few samples and scaled up.
"""

import argparse
import time
from collections.abc import Callable

import torch

from surefoot.networks.backbones import build_network
from surefoot.predictions.labels import LabelKind
from surefoot.training.data import Points
from surefoot.training.predict import Predictor, Sampled, network_logits, predict

FEW = 4  # timed passes of the whole network


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, including the device's asynchronous work."""
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    """Alternate, and compare the best."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--view", type=int, default=224)
    parser.add_argument("--classes", type=int, default=2)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--turns", type=int, default=7)
    chosen = parser.parse_args()
    device = torch.device(chosen.device)
    views = Points(torch.randn(chosen.rows, 3, chosen.view, chosen.view)).on(device)
    networks = {
        head: build_network(
            chosen.network,
            chosen.classes,
            generator=torch.Generator().manual_seed(0),
            head=head,
            head_dropout=0.2 if head == "gaussian" else 0.0,
        ).to(device)
        for head in ("linear", "gaussian")
    }
    random = torch.Generator(device=device).manual_seed(0)
    kinds: dict[str, tuple[str, Predictor]] = {
        "plain": ("linear", network_logits),
        "sampled at the head": ("gaussian", Sampled(LabelKind.ONE_LABEL, chosen.samples, random)),
        "network sampled": ("gaussian", Sampled(LabelKind.ONE_LABEL, FEW, random, whole_network=True)),
    }
    best = dict.fromkeys(kinds, float("inf"))
    for turn in range(chosen.turns + 1):
        for name, (head, way) in kinds.items():
            took = seconds(lambda h=head, w=way: predict([networks[h]], views, device, predictor=w), device)
            if turn:  # the first warms up
                best[name] = min(best[name], took)
    best["network sampled"] *= chosen.samples / FEW
    print(f"{chosen.network} at {chosen.view} px, {chosen.rows} rows, {chosen.samples} samples, {device}")
    print("| prediction | ms per 1000 | times the plain pass |")
    print("|:--|--:|--:|")
    for name, value in best.items():
        print(f"| {name} | {1e6 * value / chosen.rows:,.0f} | {value / best['plain']:,.2f} |")


if __name__ == "__main__":
    main()
