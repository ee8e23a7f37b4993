"""How a sample is labelled; apart from all that needs torch, so that looking at data need not wait for it."""

from enum import StrEnum

IGNORE = -100  # marks a label that is not known


class LabelKind(StrEnum):
    """One label per row (softmax) or any number of them (sigmoid per class)."""

    ONE_LABEL = "one_label"
    MANY_LABELS = "many_labels"
