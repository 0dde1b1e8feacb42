"""A configuration in a few words: what to watch, by the names that the file's switches begin with."""

from collections.abc import Sequence
from typing import Any

from msmon.config.problems import ConfigError

WATCH: dict[str, dict[str, Any]] = {
    "wg": {"wg_distribution": True},
    "xy": {"xy_distribution": True, "all_xy": True},
    "param": {"param_distribution": True},
    "mv": {"mv_distribution": True},
    "mg": {"mg_direction": True},
    "ur": {"ur_distribution": True},
    "cc": {"cc_distribution": {"enable": True}},
}
"""What each word switches on."""


def watch_fields(words: str | Sequence[str]) -> dict[str, Any]:
    """The fields of a configuration that words such as `wg,xy` stand for.

    Args:
        words: `wg` gradients of weights, `xy` activations and their gradients, `param` weights, `mv` optimizer moments,
            `mg` agreement of gradient and momentum, `ur` pictures of Adam's update and ratio, `cc` collectives; with
            commas between them, or a list.

    Raises:
        ConfigError: an unknown word, or none.

    >>> watch_fields("wg,xy")
    {'wg_distribution': True, 'xy_distribution': True, 'all_xy': True}
    """
    names = [word.strip() for word in (words.split(",") if isinstance(words, str) else words)]
    if not names:
        raise ConfigError(f"watch: is empty; the words are {', '.join(WATCH)}")
    fields: dict[str, Any] = {}
    for name in names:
        if name not in WATCH:
            raise ConfigError(f"watch: unknown word {name!r}; the words are {', '.join(WATCH)}")
        fields |= WATCH[name]
    return fields
