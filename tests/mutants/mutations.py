"""Small changes of meaning in a module's source: where they can be made, and the source with one of them made.

Pure. A site is found by walking the syntax tree and is changed in the text, so that line numbers and comments stay. Left out
is what no test can notice: logging, assertions (they are tests), annotations, the texts of messages, how a class is made
(`slots`, `frozen`), arguments that only assert or describe (`strict`, `repr`, `compare`, `daemon`), how an object describes
itself in logs (`__repr__`), what only type checkers run (`TYPE_CHECKING`), the order of two checks that only raise, and the
`close` of a local file that nothing holds afterwards.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], str] = {
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
SWAPPED_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
# `strict=True` of `zip` asserts, and only tests compare states as a whole; the others show in logs and at the end of a process.
SILENT_ARGUMENTS = frozenset({"strict", "repr", "compare", "daemon", "exc_info"})
LOGGERS = frozenset({"logger", "_log", "_logger", "logging", "warnings"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """`source[start:end]` becomes `text`. Offsets count characters of the module's source."""

    kind: str
    line: int
    start: int
    end: int
    text: str

    def applied(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]

    def lines(self, source: str) -> tuple[str, str]:
        """The text of its lines before and after, each in one line: they stay the same when other code moves them."""
        begin, end = source.rfind("\n", 0, self.start) + 1, source.find("\n", self.end)
        rest = source[self.end : end if end >= 0 else len(source)]
        before = source[begin : self.end] + rest
        return " ".join(before.split()), " ".join((source[begin : self.start] + self.text + rest).split())


def mutations_of(source: str) -> list[Mutation]:
    """All of them, in the order of the text. A few give a source that does not compile."""
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    return sorted(set(finder.found), key=lambda item: (item.start, item.end, item.kind, item.text))


def compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


class _Finder(ast.NodeVisitor):
    def __init__(self, source: str) -> None:
        self.found: list[Mutation] = []
        self._silent: frozenset[ast.stmt] = frozenset()
        self._source = source
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def _offset(self, line: int, column: int) -> int:
        """Columns of the syntax tree count bytes."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._offset(node.lineno, node.col_offset)

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._offset(node.end_lineno, node.end_col_offset)

    def _text(self, node: ast.expr | ast.stmt) -> str:
        return self._source[self._start(node) : self._end(node)]

    def _add(
        self, kind: str, node: ast.expr | ast.stmt, text: str, *, until: ast.expr | ast.stmt | None = None
    ) -> None:
        span = (self._start(node), self._end(until or node))
        self.found.append(Mutation(kind=kind, line=node.lineno, start=span[0], end=span[1], text=text))

    # --- what is left out --------------------------------------------------------------------------------------------

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_Raise(self, node: ast.Raise) -> None:
        pass

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arguments(self, node: ast.arguments) -> None:
        for default in (*node.defaults, *node.kw_defaults):
            if default is not None:
                self.visit(default)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._body(node.body)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg not in SILENT_ARGUMENTS:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name != "__repr__":
            self._function(node)

    # --- what is changed ---------------------------------------------------------------------------------------------

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._silent |= _last_closes(node)
        self.visit(node.args)
        self._body(node.body)

    def generic_visit(self, node: ast.AST) -> None:
        """Of statements with a body: `for`, `while`, `with`, `try`, `except`, `case`."""
        for _, value in ast.iter_fields(node):
            if isinstance(value, ast.AST):
                self.visit(value)
            elif isinstance(value, list):
                self._all(value)

    def _all(self, nodes: list[object]) -> None:
        statements = [node for node in nodes if isinstance(node, ast.stmt)]
        self._body(statements)
        for node in nodes:
            if isinstance(node, ast.AST) and node not in statements:
                self.visit(node)

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._add("negated condition", node.test, f"not ({self._text(node.test)})")
        self.visit(node.test)
        self._body(node.body)
        self._body(node.orelse)

    def _body(self, statements: list[ast.stmt]) -> None:
        for number, statement in enumerate(statements):
            if _is_effect(statement):
                if statement not in self._silent:
                    self._add("dropped call", statement, "pass")
                following = statements[number + 1] if number + 1 < len(statements) else None
                if (
                    following is not None
                    and _is_effect(following)
                    and not (_is_check(statement) and _is_check(following))
                ):
                    between = self._source[self._end(statement) : self._start(following)]
                    text = self._text(following) + between + self._text(statement)
                    self._add("swapped effects", statement, text, until=following)
            if isinstance(statement, ast.AugAssign):
                self._add("dropped assignment", statement, "pass")
            self.visit(statement)

    def visit_Expr(self, node: ast.Expr) -> None:
        if _is_effect(node):
            self.visit(node.value)

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            gap = (self._end(left), self._start(right))
            between = self._source[gap[0] : gap[1]]
            if "(" not in between and ")" not in between:
                other = f" {COMPARISONS[type(operator)]} "
                self.found.append(Mutation(kind="comparison", line=node.lineno, start=gap[0], end=gap[1], text=other))
            left = right
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for number in range(len(node.values)):
            kept = [self._text(value) for place, value in enumerate(node.values) if place != number]
            word = " and " if isinstance(node.op, ast.And) else " or "
            self._add("dropped condition", node, word.join(f"({text})" for text in kept))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.Add | ast.Sub) and not isinstance(node.left, ast.Constant):
            is_number = isinstance(node.right, ast.Constant) and isinstance(node.right.value, int)
            if is_number:
                self._add("off by one", node, f"({self._text(node.left)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add("constant", node, str(not node.value))
        elif node.value in (0, 1) and isinstance(node.value, int):
            self._add("constant", node, str(1 - node.value))

    def visit_Call(self, node: ast.Call) -> None:
        if _is_logging(node):
            return
        if isinstance(node.func, ast.Name) and node.func.id in SWAPPED_NAMES:
            self._add("swapped function", node.func, SWAPPED_NAMES[node.func.id])
        self.generic_visit(node)


def _is_effect(statement: ast.stmt) -> bool:
    """A call for its effect: not a docstring, not a log line."""
    if not isinstance(statement, ast.Expr):
        return False
    call = statement.value.value if isinstance(statement.value, ast.Await) else statement.value
    return isinstance(call, ast.Call) and not _is_logging(call)


def _last_closes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[ast.stmt]:
    """`file.close()` at the end of a local file, by the name that files have in this project: they close with their last
    reference."""
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == "file"]
    if not any(isinstance(name.ctx, ast.Store) for name in names):
        return frozenset()
    last = max(names, key=lambda name: (name.lineno, name.col_offset))
    return frozenset(
        node for node in ast.walk(function)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr == "close" and node.value.func.value is last
    )  # fmt: skip


def _is_check(statement: ast.stmt) -> bool:
    """A call that only raises, by the names of this project. Of two of them, either may be the first to raise."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    name = call.func if isinstance(call, ast.Call) else None
    word = name.attr if isinstance(name, ast.Attribute) else name.id if isinstance(name, ast.Name) else ""
    return word.lstrip("_").startswith("check_")


def _is_logging(call: ast.Call) -> bool:
    names: Iterator[ast.AST] = ast.walk(call.func)
    return any(isinstance(name, ast.Name) and name.id in LOGGERS for name in names)
