"""Handwritten digits, 8×8×1, ten classes: the 1,797 images that ship inside scikit-learn.

They have no published split; 297 images are the test set, drawn once and for all, stratified by class
(quotas by largest remainder, a fixed permutation within each class); the other 1,500 are the training set.
"""

import torch
from sklearn.datasets import load_digits

from study.config import DataConfig
from study.data._choice import class_counts, draw, proportional
from study.data.base import RawSet, Split

N_TEST = 297
N_CLASSES = 10


def load(config: DataConfig) -> RawSet:
    """Return the digits; their 17 grey levels 0…16 become round(255·level/16)."""
    bunch = load_digits()
    levels = torch.from_numpy(bunch.images)
    images = (levels * (255 / 16)).round().to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(bunch.target).long()
    held_out = draw(labels, proportional(class_counts(labels, N_CLASSES), N_TEST), "digits test")
    whole = Split(images, labels)
    train, test = (whole.take(torch.nonzero(m).flatten()) for m in (~held_out, held_out))
    return RawSet(train, test, N_CLASSES)
