"""What training minimises."""

import torch
from torch import Tensor
from torch.nn import functional as F

from surefoot.predictions import LabelKind


def classification_loss(logits: Tensor, labels: Tensor, kind: LabelKind) -> Tensor:
    """Cross-entropy; for many labels binary cross-entropy over the labels that are not ignored."""
    if kind is LabelKind.ONE_LABEL:
        return F.cross_entropy(logits.float(), labels)
    known = labels >= 0
    each = F.binary_cross_entropy_with_logits(logits.float(), labels.clamp(min=0).float(), reduction="none")
    return torch.where(known, each, 0.0).sum() / known.sum().clamp(min=1)
