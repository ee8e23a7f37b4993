"""The MLP of the toy tasks on a CPU: our loop compared with a hand-written PyTorch loop, two processes each.

    python benchmarks/toy_training.py [--networks 4] [--epochs 30] [--width 1024]

Both train the same networks on the same 1200 points, one thread per process. The start of Python is not
timed.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HAND_WRITTEN = """
import sys, time, torch
from torch import nn
from surefoot.tasks import Split, task_named
torch.set_num_threads(1)
networks, epochs, width = map(int, sys.argv[1:])
train = task_named("toy").splits[Split.TRAIN]
x, y = torch.from_numpy(train.inputs).float(), torch.from_numpy(train.labels)
def layer(a, b): return [nn.Linear(a, b), nn.ReLU(), nn.BatchNorm1d(b)]
start = time.perf_counter()
for seed in range(networks):
    torch.manual_seed(seed)
    network = nn.Sequential(*layer(2, width), *layer(width, width), *layer(width, width), nn.Linear(width, 2))
    optimiser = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(epochs):
        for rows in torch.randperm(len(x)).split(128):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
            optimiser.step()
print(time.perf_counter() - start)
"""

OURS = """
import sys, time, torch
from pathlib import Path
from surefoot.workers.jobs import WorkOrder, jobs_of
from surefoot.workers.produce import open_context
from surefoot.recipes.recipe import Recipe
from surefoot.training.loop import train
from surefoot.training.losses import Classification
from surefoot.training.initial import initial_network
from surefoot.tasks import Split
torch.set_num_threads(1)
networks, epochs, width = map(int, sys.argv[1:])
recipe = Recipe(network="mlp", width=width, epochs=epochs, learning_rate=0.01)
order = WorkOrder(task="toy", root=None, jobs=jobs_of(recipe, (0,)), store="unused", cache="unused")
context = open_context(order)
labels = torch.from_numpy(context.task.splits[Split.TRAIN].labels)
start = time.perf_counter()
for seed in range(networks):
    network = initial_network(recipe, context.task, context.inputs, seed=seed, weights=None)
    loss = Classification(context.task.kind)
    train(network, context.inputs[Split.TRAIN], labels, loss, recipe, seed=seed, device=torch.device("cpu"))
print(time.perf_counter() - start)
"""


def seconds(code: str, arguments: list[str]) -> float:
    """Two parallel processes; the slower one counts."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "loop.py"
        script.write_text(code)
        command = [sys.executable, str(script), *arguments]
        pair = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        return max(float(process.communicate()[0]) for process in pair)


def main() -> None:
    """Alternate, and compare the best."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--networks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--turns", type=int, default=3)
    chosen = parser.parse_args()
    arguments = [str(value) for value in (chosen.networks, chosen.epochs, chosen.width)]
    turns = []
    for _ in range(chosen.turns):
        turns.append((seconds(HAND_WRITTEN, arguments), seconds(OURS, arguments)))
        print(f"hand-written {turns[-1][0]:.2f} s, ours {turns[-1][1]:.2f} s", flush=True)
        time.sleep(0.5)
    plain, ours = (min(turn[side] for turn in turns) for side in (0, 1))
    print(f"best of {chosen.turns}: ours takes {ours / plain:.2f} of the hand-written loop's time")


if __name__ == "__main__":
    main()
