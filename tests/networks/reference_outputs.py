"""What torchvision's own networks give for weights that anybody can make again.

    PYTHONPATH=src python tests/networks/reference_outputs.py tests/networks/torchvision_outputs.npz

Needs torch, torchvision and numpy alone, and no GPU. Weights and input are a function of their names and of
nothing else: no library's random numbers, so no version of any library changes them.
"""

import hashlib
import sys

import numpy as np
import torch

NAMES = ("resnet18", "resnet34", "resnet50", "densenet161")
INPUT_SHAPE = (2, 3, 96, 96)


def spread(name, shape):
    """Numbers in [-1, 1), uniform and fixed by the name: splitmix64 of name and index."""
    seed = np.frombuffer(hashlib.sha256(name.encode()).digest()[:8], dtype="<u8")
    index = np.arange(int(np.prod(shape)), dtype=np.uint64)
    z = seed + (index + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)  # wraps, as it should
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return ((z >> np.uint64(11)).astype(np.float64) / 2**52 - 1).reshape(shape)


def weight(name, shape):
    """A tensor that keeps activations near 1: He's scale for matrices, near 1 for scales and variances."""
    if name.endswith("num_batches_tracked"):
        return np.zeros(shape, dtype=np.int64)
    numbers = spread(name, shape)
    if len(shape) > 1:
        return numbers * np.sqrt(6 / np.prod(shape[1:]))
    if name.endswith(("running_var", "weight")):
        return 1 + 0.3 * numbers
    return 0.1 * numbers


def fill(network):
    """The network in float64 and eval mode, every parameter and buffer replaced."""
    state = {
        name: torch.from_numpy(weight(name, tuple(old.shape))) for name, old in network.state_dict().items()
    }
    network = network.double().eval()
    network.load_state_dict(state, strict=True)
    return network


def outputs(network):
    """Logits (2, classes) for the fixed input."""
    with torch.no_grad():
        return fill(network)(torch.from_numpy(spread("input", INPUT_SHAPE))).numpy()


def main(path):
    import torchvision

    arrays = {"versions": np.array([torch.__version__, torchvision.__version__, np.__version__])}
    for name in NAMES:
        network = torchvision.models.get_model(name, weights=None)
        state = network.state_dict()
        arrays[f"{name}/outputs"] = outputs(network)
        arrays[f"{name}/names"] = np.array(list(state))
        arrays[f"{name}/shapes"] = np.array(["x".join(map(str, tensor.shape)) for tensor in state.values()])
        spread_of_logits = arrays[f"{name}/outputs"].std()
        print(f"{name}: {len(state)} tensors, logits spread {spread_of_logits:.4g}")  # noqa: T201
    np.savez_compressed(path, **arrays)


if __name__ == "__main__":
    main(sys.argv[1])
