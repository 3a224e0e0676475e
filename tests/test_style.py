"""Style that the linter does not know: one assignment a line, flat expressions, whole sentences."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: First words of docstrings that name nothing and have no verb.
INDIRECT = ("What ", "Of ", "The same", "Those ", "As `", "See `", "Who ", "Whether it", "How it")
COMPREHENSION = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def places(is_wrong: Callable[[ast.AST], bool], *folders: str) -> list[str]:
    """Return the places of nodes in the code of some folders."""
    wrong = []
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if is_wrong(node):
                    wrong.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}")
    return wrong


def is_packed(node: ast.AST) -> bool:
    """Return whether an assignment writes several values out, unless it exchanges names."""
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple):
        return False
    if not isinstance(node.value, ast.Tuple):
        return False
    targets = {ast.unparse(target) for target in node.targets[0].elts}
    return targets != {ast.unparse(value) for value in node.value.elts}


def has_indirect_docstring(node: ast.AST) -> bool:
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
        return False
    return (ast.get_docstring(node) or "").startswith(INDIRECT)


def is_nested_conditional(node: ast.AST) -> bool:
    if not isinstance(node, ast.IfExp):
        return False
    return any(isinstance(part, ast.IfExp) for part in (node.test, node.body, node.orelse))


def is_expression_over_several_lines(node: ast.AST) -> bool:
    if not isinstance(node, ast.IfExp | COMPREHENSION):
        return False
    return node.lineno != node.end_lineno


def test_an_assignment_has_one_value() -> None:
    assert places(is_packed, "fedmf", "tests", "simulations") == []


def test_docstrings_are_sentences_or_name_the_thing() -> None:
    assert places(has_indirect_docstring, "fedmf") == []


def test_conditional_expressions_are_not_nested() -> None:
    assert places(is_nested_conditional, "fedmf") == []


def test_conditional_expressions_and_comprehensions_fit_on_a_line() -> None:
    assert places(is_expression_over_several_lines, "fedmf") == []


def test_assignment_expressions_are_rare() -> None:
    lines = sum(len(path.read_text().splitlines()) for path in (ROOT / "fedmf").rglob("*.py"))
    assert len(places(lambda node: isinstance(node, ast.NamedExpr), "fedmf")) < lines / 2000
