"""The network of the paper's toy problems: a multi-layer perceptron."""

from collections import OrderedDict

from torch import Tensor, nn

from surefoot.networks.network import HeadBuilder, Network

DROPOUT = 0.2  # the paper gives no rate for the toy; this is the one rate it gives


class Perceptron(Network):
    """Per hidden layer: linear, ReLU, BatchNorm, dropout (Li & Hoiem, CVPR 2020, supplement).

    Input of any shape (n, ...) is flattened to (n, inputs).
    """

    head_name = "output"

    def __init__(
        self,
        head: HeadBuilder,
        *,
        inputs: int = 2,
        hidden: tuple[int, ...] = (1024, 1024, 1024),
        layer_dropout: float = DROPOUT,
    ) -> None:
        super().__init__()
        widths = (inputs, *hidden)
        self.hidden = nn.Sequential(
            *(_layer(before, after, layer_dropout) for before, after in zip(widths, hidden, strict=False))
        )
        self.output = head(widths[-1])

    def features(self, points: Tensor) -> Tensor:
        """The last hidden layer (n, width)."""
        x: Tensor = self.hidden(points.flatten(1))
        return x


def _layer(inputs: int, outputs: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            linear=nn.Linear(inputs, outputs),
            relu=nn.ReLU(),
            norm=nn.BatchNorm1d(outputs),
            dropout=nn.Dropout(dropout),
        )
    )
