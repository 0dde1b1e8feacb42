"""Further statistics of tensors that training is made of: attention, linear layers, routers, Adam."""

from msmon_stats.features._adam import adam_histograms, adam_update
from msmon_stats.features._attention import attention_features
from msmon_stats.features._direction import sign_agreement
from msmon_stats.features._histogram import histogram
from msmon_stats.features._router import router_entropy, router_similarity
from msmon_stats.features._spectral import linear_features

__all__ = [
    "adam_histograms",
    "adam_update",
    "attention_features",
    "histogram",
    "linear_features",
    "router_entropy",
    "router_similarity",
    "sign_agreement",
]
