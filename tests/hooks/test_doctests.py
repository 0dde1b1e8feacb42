"""Every example in a docstring of the hooks runs, also where no framework is installed."""

import doctest
import importlib
import importlib.util
import pkgutil

import pytest

import msmon_hooks

TORCH = importlib.util.find_spec("torch") is not None
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(msmon_hooks.__path__, "msmon_hooks.", onerror=lambda name: None)
    if "mindspore" not in module.name and (TORCH or ".torch" not in module.name)
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    runner = doctest.DocTestRunner()
    for test in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name)):
        if TORCH or not any("torch" in example.source for example in test.examples):
            runner.run(test)
    assert runner.summarize().failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    found = [test for name in MODULES for test in finder.find(importlib.import_module(name)) if test.examples]
    assert len(found) > 10
