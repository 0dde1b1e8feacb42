"""Every example in a docstring of msmon_alert runs and prints what it says."""

import doctest
import importlib
import pkgutil

import pytest

import msmon_alert

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(msmon_alert.__path__, "msmon_alert.")
    if not module.name.endswith("__main__")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_public_names_have_examples():
    shown = {name for name in msmon_alert.__all__ if ">>> " in (getattr(msmon_alert, name).__doc__ or "")}
    assert set(msmon_alert.__all__) - shown == {"Rule", "SortedAnomalies", "load_state"}  # in those of others
