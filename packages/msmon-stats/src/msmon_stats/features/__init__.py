"""Further statistics of tensors that training is made of: attention, linear layers, routers, Adam."""

from msmon_stats.features.adam import adam_histograms, adam_update
from msmon_stats.features.attention import attention_features
from msmon_stats.features.direction import sign_agreement
from msmon_stats.features.histograms import histogram
from msmon_stats.features.router import router_entropy, router_similarity
from msmon_stats.features.spectral import linear_features

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
