"""Intervals by order statistics, for measurements of pairs."""

import math


def interval(values):
    """Returns the 95 % interval of the median: between the k-th smallest and the k-th largest value, for any distribution."""
    ordered, count = sorted(values), len(values)
    outside, k = 0.0, 0
    while k < count // 2 and outside + math.comb(count, k) / 2**count <= 0.025:
        outside += math.comb(count, k) / 2**count
        k += 1
    return ordered[max(0, k - 1)], ordered[count - max(1, k)]
