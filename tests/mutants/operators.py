"""What a small fault is: one node of a module's syntax tree and the text that takes its place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
ARITHMETIC = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "*",
    ast.Pow: "*",
    ast.LShift: ">>",
    ast.RShift: "<<",
    ast.BitAnd: "|",
    ast.BitXor: "&",
}
EXTREMES = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "any": "all",
    "all": "any",
}


@dataclass(frozen=True)
class Fault:
    """Text of ``node`` is replaced by ``text``, within the function or class ``within``."""

    operator: str
    node: ast.expr | ast.stmt
    text: str
    within: str


class _Faults(ast.NodeVisitor):
    """All faults of a module, in the order of its text. Texts that people read are left alone."""

    def __init__(self) -> None:
        self.found: list[Fault] = []
        self._within: list[str] = []

    def _add(self, operator: str, node: ast.expr | ast.stmt, text: str) -> None:
        self.found.append(Fault(operator, node, text, ".".join(self._within)))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._enter(node.name, node.body)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._enter(node.name, [*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body])

    def _enter(self, name: str, body: list[ast.stmt] | list[ast.expr | ast.stmt]) -> None:
        self._within.append(name)
        for child in body:
            self.visit(child)
        self._within.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if not (isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"):
            self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """What an error says is no promise."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Text for people."""

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if all(isinstance(child, ast.Raise) for child in node.body):
            self._add("dropped check", node.test, "False")
        else:
            self._add("negated condition", node.test, f"not ({ast.unparse(node.test)})")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        swapped = ast.IfExp(node.test, node.orelse, node.body)
        self._add("swapped branches", node, f"({ast.unparse(swapped)})")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self._add("dropped call", node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        sign = ARITHMETIC.get(type(node.op))
        if sign is not None:
            text = f"{ast.unparse(node.target)} {sign}= {ast.unparse(node.value)}"
            self._add("arithmetic", node, text)
        self._add("dropped update", node, "pass")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        sign = COMPARISONS[type(node.ops[0])]
        rest = "".join(
            f" {_sign(op)} {ast.unparse(right)}"
            for op, right in zip(node.ops[1:], node.comparators[1:], strict=True)
        )
        text = f"({ast.unparse(node.left)} {sign} {ast.unparse(node.comparators[0])}{rest})"
        self._add("comparison", node, text)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        self._add("connective", node, f"({ast.unparse(other)})")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            self._add("dropped sign", node, f"({ast.unparse(node.operand)})")
        if not isinstance(node.operand, ast.Constant):
            self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        sign = ARITHMETIC.get(type(node.op))
        if sign is not None and not (_is_text(node.left) or _is_text(node.right)):
            self._add("arithmetic", node, f"({_part(node.left)} {sign} {_part(node.right)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if node.value is True or node.value is False:
            self._add("truth value", node, str(not node.value))
        elif isinstance(node.value, int | float):
            self._add("constant", node, f"{node.value + 1!r}")

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in EXTREMES:
            function = ast.unparse(node.func).removesuffix(name) + EXTREMES[name]
            self._add("extreme", node.func, function)
        plain = [isinstance(argument, ast.Name | ast.Attribute) for argument in node.args]
        if len(plain) >= 2 and all(plain[:2]) and name not in {*EXTREMES, "isinstance"}:
            first, second, *rest = node.args
            swapped = ast.Call(node.func, [second, first, *rest], node.keywords)
            self._add("swapped arguments", node, ast.unparse(swapped))
        self.generic_visit(node)


def _sign(op: ast.cmpop) -> str:
    return ast.unparse(ast.Compare(ast.Name("x"), [op], [ast.Name("x")]))[2:-2]


def _part(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def faults_of(source: str) -> Iterator[tuple[Fault, str]]:
    """Each fault of a module with the module's text that has it, without faults that change nothing."""
    visitor = _Faults()
    tree = ast.parse(source)
    visitor.visit(tree)
    lines = source.encode().splitlines(keepends=True)
    for fault in visitor.found:
        node = fault.node
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
        after = lines[node.end_lineno - 1][node.end_col_offset :] + b"".join(lines[node.end_lineno :])
        text = (before + fault.text.encode() + after).decode()
        if ast.dump(ast.parse(text)) != ast.dump(tree):
            yield fault, text
