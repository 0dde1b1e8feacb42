"""The switch that compiled code is guarded by."""

from __future__ import annotations


class Gate:
    """Says whether code that is compiled, or looked for among what was compiled, has marks, and which.

    The tracer reads `marks` and guards it: so there are two versions of compiled code, one without marks and one with
    these, and switching between them compiles nothing once both are there.
    """

    def __init__(self) -> None:
        self.marks = ""
        """What is marked, in a few letters that differ where it does; empty: nothing."""


GATE = Gate()
