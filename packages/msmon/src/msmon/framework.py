"""Which framework this program trains with."""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

# In the order in which they are asked.
_MODULES = {"torch": "msmon.pytorch", "mindspore": "msmon.mindspore"}


def chosen_module() -> str:
    """The module of msmon for the framework that the program has imported, or else for the one that is installed.

    Raises:
        ImportError: there is neither.
    """
    imported = (module for framework, module in _MODULES.items() if sys.modules.get(framework) is not None)
    installed = (module for framework, module in _MODULES.items() if _is_installed(framework))
    module = next(imported, None) or next(installed, None)
    if module is None:
        raise ImportError(
            "msmon.TrainerMon needs PyTorch or MindSpore, and neither is installed: "
            "pip install 'msmon[torch]' or pip install 'msmon[mindspore]'"
        )
    return module


def module_of(framework: str) -> str:
    """The module of msmon for a framework, by its import name."""
    return _MODULES[framework]


def trainer_mon_class() -> Any:
    """`TrainerMon` of the chosen framework."""
    return import_module(chosen_module()).TrainerMon


def _is_installed(framework: str) -> bool:
    try:
        return find_spec(framework) is not None
    except ValueError:  # a module without a specification, put into sys.modules by hand
        return False
