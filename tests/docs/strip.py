"""An example without its monitor: what it would be if msmon did not exist."""

from __future__ import annotations

import ast


def without_monitor(source: str) -> str:
    """The program without a line that mentions msmon.

    Example:
        >>> source = "from msmon import TrainerMon\\nwith TrainerMon(1) as m:\\n    m.set_monitor(2)\\n    f()"
        >>> print(without_monitor(source))
        if True:
            f()
    """
    return ast.unparse(ast.fix_missing_locations(_Strip().visit(ast.parse(source))))


class _Strip(ast.NodeTransformer):
    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None if (node.module or "").startswith("msmon") else node

    def visit_With(self, node: ast.With) -> ast.AST:
        self.generic_visit(node)
        if not _mentions(node.items[0], "TrainerMon"):
            return node
        return ast.If(test=ast.Constant(True), body=node.body, orelse=[])

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        self.generic_visit(node)
        called = node.value.func if isinstance(node.value, ast.Call) else None
        return None if isinstance(called, ast.Attribute) and called.attr in ("set_monitor", "close") else node

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        self.generic_visit(node)
        return None if _mentions(node.value, "TrainerMon") else node

    def visit_keyword(self, node: ast.keyword) -> ast.AST | None:
        return None if _mentions(node.value, "MsmonCallback") else node


def _mentions(node: ast.AST, name: str) -> bool:
    return any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(node))
