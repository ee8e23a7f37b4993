"""DenseNet-161 (Huang et al., CVPR 2017), with torchvision's names."""

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from surefoot.networks.network import HeadBuilder, Network

BOTTLENECK = 4  # the 1x1 convolution's outputs, in growths


class DenseLayer(nn.Module):
    """`growth` new maps from all before: bn, relu, 1x1, bn, relu, 3x3, dropout."""

    def __init__(self, inputs: int, growth: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(inputs, BOTTLENECK * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(BOTTLENECK * growth)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(BOTTLENECK * growth, growth, 3, padding=1, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, maps: list[Tensor]) -> Tensor:
        x = self.conv1(self.relu1(self.norm1(torch.cat(maps, 1))))
        x = self.conv2(self.relu2(self.norm2(x)))
        dropped: Tensor = self.dropout(x)
        return dropped


class DenseBlock(nn.ModuleDict):
    """Layers that each see the maps of all before them."""

    def __init__(self, inputs: int, depth: int, growth: int, dropout: float) -> None:
        super().__init__()
        for layer in range(depth):
            self[f"denselayer{layer + 1}"] = DenseLayer(inputs + layer * growth, growth, dropout)

    def forward(self, x: Tensor) -> Tensor:
        maps = [x]
        for layer in self.values():
            maps.append(layer(maps))
        return torch.cat(maps, 1)


class DenseFeatures(nn.Sequential):
    """Everything before the classifier; gives channel means (n, width)."""

    def forward(self, images: Tensor) -> Tensor:
        maps = images
        for part in self:
            maps = part(maps)
        return F.adaptive_avg_pool2d(F.relu(maps, inplace=True), 1).flatten(1)


class DenseNet(Network):
    """A densely connected network; `layer_dropout` is the rate after every dense layer."""

    head_name = "classifier"
    convolution_fan = "fan_in"

    def __init__(
        self,
        head: HeadBuilder,
        *,
        growth: int,
        depths: tuple[int, ...],
        stem_width: int,
        channels: int = 3,
        small_stem: bool = False,
        layer_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        parts = _small_stem(channels, stem_width) if small_stem else _stem(channels, stem_width)
        width = stem_width
        for number, depth in enumerate(depths, start=1):
            parts[f"denseblock{number}"] = DenseBlock(width, depth, growth, layer_dropout)
            width += depth * growth
            if number < len(depths):
                parts[f"transition{number}"] = _transition(width)
                width //= 2
        parts[f"norm{len(depths) + 1}"] = nn.BatchNorm2d(width)
        self.features = DenseFeatures(parts)
        self.classifier = head(width)


def densenet161(
    head: HeadBuilder, *, channels: int = 3, small_stem: bool = False, layer_dropout: float = 0.0
) -> DenseNet:
    """DenseNet-161: growth 48, blocks of 6, 12, 36 and 24 layers, 96 maps after the stem."""
    return DenseNet(
        head,
        growth=48,
        depths=(6, 12, 36, 24),
        stem_width=96,
        channels=channels,
        small_stem=small_stem,
        layer_dropout=layer_dropout,
    )


def _stem(channels: int, width: int) -> OrderedDict[str, nn.Module]:
    return OrderedDict(
        conv0=nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False),
        norm0=nn.BatchNorm2d(width),
        relu0=nn.ReLU(inplace=True),
        pool0=nn.MaxPool2d(3, stride=2, padding=1),
    )


def _small_stem(channels: int, width: int) -> OrderedDict[str, nn.Module]:
    return OrderedDict(
        conv0=nn.Conv2d(channels, width, 3, padding=1, bias=False),
        norm0=nn.BatchNorm2d(width),
        relu0=nn.ReLU(inplace=True),
    )


def _transition(inputs: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            norm=nn.BatchNorm2d(inputs),
            relu=nn.ReLU(inplace=True),
            conv=nn.Conv2d(inputs, inputs // 2, 1, bias=False),
            pool=nn.AvgPool2d(2, stride=2),
        )
    )
