"""ResNet-18, -34 and -50 (He et al., CVPR 2016), with torchvision's names."""

from typing import ClassVar

from torch import Tensor, nn

from surefoot.networks.network import HeadBuilder, Network


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
    """A residual network; `small_stem` (3x3, stride 1, no pooling) is for images under about 64 px."""

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
