"""What msmon finds on this machine: versions, kernels, engines and trainers, and what it will not see.

Prints no path, no host and no user name, so that it can be put into a bug report as it is.
"""

import argparse
import platform
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module, metadata
from importlib.util import find_spec

from rich.table import Table
from rich.text import Text

from msmon import __version__
from msmon.cli.plan import kernels
from msmon.cli.reading import console, text
from msmon.config import dynamic_mode

EPILOG = """\
examples:
  msmon doctor

exit status:
  0  there is a framework to watch
  1  there is none, or it cannot be imported"""

_PACKAGES = ("msmon-stats", "msmon-hooks", "msmon-alert", "msmon-io")
_ENGINES = (
    "deepspeed",
    "megatron-core",
    "accelerate",
    "transformers",
    "trl",
    "lightning",
    "pytorch-lightning",
    "torchtitan",
)
_OUTPUTS = {"tensorboard": "format tensorboard", "pyarrow": "format parquet, and msmon report, diff and merge"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    frameworks = [name for name in ("torch", "mindspore") if find_spec(name) is not None]
    broken = {name: error for name in frameworks if (error := _import_error(name))}
    usable = [name for name in frameworks if name not in broken]
    sections = {
        "Versions": [("msmon", __version__), *_versions(_PACKAGES), ("python", platform.python_version()),
                     ("system", f"{platform.system()} {platform.machine()}")],
        "Frameworks": [*((name, _framework(name)) for name in usable), *broken.items()],
        "Engines and trainers": _versions(_ENGINES),
        "Not seen": list(_unseen(usable)),
    }  # fmt: skip
    out = console()
    for title, rows in sections.items():
        table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, what in rows or [("none", "")]:
            table.add_row(Text(name), text(what))
        out.print(table)
        out.print()
    return 0 if usable else 1


def _import_error(name: str) -> str:
    try:
        import_module(name)
    except Exception as error:  # a broken installation raises anything
        return f"cannot be imported: {type(error).__name__}: {error}"
    return ""


def _framework(name: str) -> str:
    return f"{import_module(name).__version__}; kernels: {kernels(name)}"


def _versions(names: Iterable[str]) -> list[tuple[str, str]]:
    found = []
    for name in names:
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return found


def _unseen(frameworks: list[str]) -> Iterator[tuple[str, str]]:
    if "torch" in frameworks:
        yield "torch.compile", "inside of compiled modules only with inside_compiled in the configuration"
    if "mindspore" in frameworks:
        yield "graph mode", "Cells that MindSpore compiles run no hooks; PyNative mode does"
    for module, what in _OUTPUTS.items():
        if find_spec(module) is None:
            yield what, f"needs {module}, which is not installed"
    if find_spec("llvmlite") is None:
        yield "CPU kernels", "need llvmlite (pip install 'msmon-stats[cpu]'); without it a CPU is several times slower"
    if dynamic_mode():
        yield "DYNAMIC_MONITOR", "is set: nothing is collected until dynamic_on is true in the configuration file"
    if sys.flags.ignore_environment or sys.flags.isolated:
        yield "msmon run", "reaches no interpreter that ignores the environment (python -E, -I)"
