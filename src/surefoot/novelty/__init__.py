"""How strange a sample is to a network: scores, higher is stranger."""

from surefoot.novelty.knn import distances_within, neighbour_distances
from surefoot.novelty.logits import energy, max_probability
from surefoot.novelty.odin import odin
from surefoot.novelty.scaling import Scale, auroc, fit_scale
from surefoot.novelty.scores import NOVELTY_SCORES, NoveltyScore, novelty_scores

__all__ = [
    "NOVELTY_SCORES",
    "NoveltyScore",
    "Scale",
    "auroc",
    "distances_within",
    "energy",
    "fit_scale",
    "max_probability",
    "neighbour_distances",
    "novelty_scores",
    "odin",
]
