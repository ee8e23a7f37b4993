"""The built-in architectures: ResNet, DenseNet-161 (both with torchvision's names), and those for vectors."""

from collections import OrderedDict
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from surefoot.lab.networks.network import HeadBuilder, Network

DENSE_BOTTLENECK = 4  # outputs of a dense layer's 1x1 convolution, in growths
RESIDUAL_BLOCKS = 3
PERCEPTRON_DROPOUT = 0.2  # the paper gives no rate for the toy; this is the one rate it gives


class BasicBlock(nn.Module):
    """y = relu(x + bn(conv3x3(relu(bn(conv3x3(x))))))."""

    expansion: ClassVar[int] = 1

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, planes, 3, stride)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = _convolution(planes, planes, 3, 1)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = _shortcut(inputs, planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += x if self.downsample is None else self.downsample(x)
        activated: Tensor = self.relu(y)
        return activated


class Bottleneck(nn.Module):
    """y = relu(x + 1x1, 3x3, 1x1 convolutions of x), the stride in the 3x3: "v1.5", as torchvision's."""

    expansion: ClassVar[int] = 4

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        outputs = planes * self.expansion
        self.conv1 = _convolution(inputs, planes, 1, 1)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = _convolution(planes, planes, 3, stride)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = _convolution(planes, outputs, 1, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        activated: Tensor = self.relu(y)
        return activated


class ResNet(Network):
    """A residual network (He et al., CVPR 2016).

    `small_stem` (3x3, stride 1, no pooling) is for images under about 64 px.
    """

    head_name = "fc"

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, int, int, int],
        head: HeadBuilder,
        *,
        channels: int = 3,
        small_stem: bool = False,
    ) -> None:
        super().__init__()
        self.conv1 = _convolution(channels, 64, 3, 1) if small_stem else _convolution(channels, 64, 7, 2)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small_stem else nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(block, 64, 64, depths[0], stride=1)
        self.layer2 = _stage(block, 64 * block.expansion, 128, depths[1], stride=2)
        self.layer3 = _stage(block, 128 * block.expansion, 256, depths[2], stride=2)
        self.layer4 = _stage(block, 256 * block.expansion, 512, depths[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = head(512 * block.expansion)

    def features(self, images: Tensor) -> Tensor:
        """Channel means (n, width) of the last feature maps."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        pooled: Tensor = self.avgpool(x)
        return pooled.flatten(1)


def resnet18(head: HeadBuilder, *, channels: int = 3, small_stem: bool = False) -> ResNet:
    """ResNet-18."""
    return ResNet(BasicBlock, (2, 2, 2, 2), head, channels=channels, small_stem=small_stem)


def resnet34(head: HeadBuilder, *, channels: int = 3, small_stem: bool = False) -> ResNet:
    """ResNet-34."""
    return ResNet(BasicBlock, (3, 4, 6, 3), head, channels=channels, small_stem=small_stem)


def resnet50(head: HeadBuilder, *, channels: int = 3, small_stem: bool = False) -> ResNet:
    """ResNet-50."""
    return ResNet(Bottleneck, (3, 4, 6, 3), head, channels=channels, small_stem=small_stem)


class DenseLayer(nn.Module):
    """`growth` new maps from all before: bn, relu, 1x1, bn, relu, 3x3, dropout."""

    def __init__(self, inputs: int, growth: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = _convolution(inputs, DENSE_BOTTLENECK * growth, 1, 1)
        self.norm2 = nn.BatchNorm2d(DENSE_BOTTLENECK * growth)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = _convolution(DENSE_BOTTLENECK * growth, growth, 3, 1)
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
    """A densely connected network (Huang et al., CVPR 2017); `layer_dropout` follows every dense layer."""

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
        width = stem_width
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        parts["conv0"] = (
            _convolution(channels, width, 3, 1) if small_stem else _convolution(channels, width, 7, 2)
        )
        parts["norm0"] = nn.BatchNorm2d(width)
        parts["relu0"] = nn.ReLU(inplace=True)
        if not small_stem:
            parts["pool0"] = nn.MaxPool2d(3, stride=2, padding=1)
        for number, depth in enumerate(depths, start=1):
            parts[f"denseblock{number}"] = DenseBlock(width, depth, growth, layer_dropout)
            width += depth * growth
            if number < len(depths):
                transition = OrderedDict(
                    norm=nn.BatchNorm2d(width),
                    relu=nn.ReLU(inplace=True),
                    conv=_convolution(width, width // 2, 1, 1),
                    pool=nn.AvgPool2d(2, stride=2),
                )
                parts[f"transition{number}"] = nn.Sequential(transition)
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
        layer_dropout: float = PERCEPTRON_DROPOUT,
    ) -> None:
        super().__init__()
        widths = (inputs, *hidden)
        layers = [
            OrderedDict(
                linear=nn.Linear(before, after),
                relu=nn.ReLU(),
                norm=nn.BatchNorm1d(after),
                dropout=nn.Dropout(layer_dropout),
            )
            for before, after in zip(widths, hidden, strict=False)
        ]
        self.hidden = nn.Sequential(*map(nn.Sequential, layers))
        self.output = head(widths[-1])

    def features(self, points: Tensor) -> Tensor:
        """The last hidden layer (n, width)."""
        x: Tensor = self.hidden(points.flatten(1))
        return x


class LinearClassifier(Network):
    """Logistic regression: the head alone, on input of any shape (n, ...), flattened to (n, inputs)."""

    head_name = "output"

    def __init__(self, head: HeadBuilder, *, inputs: int = 2) -> None:
        super().__init__()
        self.output = head(inputs)

    def features(self, points: Tensor) -> Tensor:
        """The inputs."""
        return points.flatten(1)


class ResidualBlock(nn.Module):
    """y = x + dropout(W relu(V bn(x)))."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.linear1 = nn.Linear(width, width)
        self.relu = nn.ReLU()
        self.linear2 = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.dropout(self.linear2(self.relu(self.linear1(self.norm(x)))))
        return y


class ResidualPerceptron(Network):
    """A linear layer, residual blocks, BatchNorm, ReLU (Gorishniy et al., NeurIPS 2021): for tables.

    Input of any shape (n, ...) is flattened to (n, inputs).
    """

    head_name = "output"

    def __init__(
        self,
        head: HeadBuilder,
        *,
        inputs: int = 2,
        width: int = 1024,
        blocks: int = RESIDUAL_BLOCKS,
        layer_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.blocks = nn.Sequential(*(ResidualBlock(width, layer_dropout) for _ in range(blocks)))
        self.norm = nn.BatchNorm1d(width)
        self.relu = nn.ReLU()
        self.output = head(width)

    def features(self, points: Tensor) -> Tensor:
        """The last activations (n, width)."""
        x: Tensor = self.relu(self.norm(self.blocks(self.first(points.flatten(1)))))
        return x


def _convolution(inputs: int, outputs: int, size: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(_convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


def _stage(
    block: type[BasicBlock] | type[Bottleneck], inputs: int, planes: int, depth: int, *, stride: int
) -> nn.Sequential:
    outputs = planes * block.expansion
    rest = [block(outputs, planes, 1) for _ in range(depth - 1)]
    return nn.Sequential(block(inputs, planes, stride), *rest)
