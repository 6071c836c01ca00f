"""unused_names.py: prints the public names of src/penstock that nothing that ships, and no benchmark, refers to.

Functions, classes and constants of a module count as used in their own module, or where they are imported. Members of classes count as
used where any object is asked for that name: no types are known, so two members of one name keep each other alive, and it finds too little
rather than too much. A definition does not use itself, nor does one that only hands on to another of its name. What ``testing``
alone uses is not used: a shipped class needs no methods for tests.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CALLED_FROM_OUTSIDE = {"DataSource", "DataSourceReader", "DataSourceStreamReader", "DataSourceStreamWriter", "DataSourceWriter"}
CALLED_FROM_OUTSIDE |= {"SimpleDataSourceStreamReader", "FlightServerBase", "ServerMiddlewareFactory", "Formatter", "Group", "H11Protocol"}
CALLED_FROM_OUTSIDE |= {"TypeDecorator[str]", "BaseHTTPRequestHandler", "NetworkBackend", "NetworkStream"}
"""Bases of libraries that call our methods by name."""
REGISTERS = {"command", "group", "callback", "get", "post", "put", "delete", "exception_handler"}
"""Decorators of an object that keeps what they decorate: a verb, a route."""
ALLOWED = {
    "format/csv/dialect.py::HEX": "a value of the setting binary-encoding",
    "format/sheet_kernels.py::validity": "kernels read it by its place",
    "library/capture.py::wait_until_caught_up": "for users: docs/library.md",
    "model/failpoints.py::arm": "the seam of every test that kills a process",
    "source/dataserver/service/service.py::CdcPullLog": "gRPC calls it by name",
    "source/dataserver/workload.py::last_commit_ts": "what whoever drives a workload waits for",
    "store/event_store.py::commit_changes": "mechanism 10: a large transaction that was written elsewhere; no source writes one yet",
    "store/span_store.py::commit_changes": "as above",
    "store/flusher.py::wait_idle": "the only way to know that the merger has nothing more to do",
}
"""``module::name`` of what nothing refers to and stays, and why."""
CATALOGUED = {"SCHEMES", "KIND"}
"""What ``sink/catalog.py`` looks for in the folder of each kind of target."""


class Definition(NamedTuple):
    """A public name and where it is defined."""

    module: str
    name: str
    line: int
    member: bool

    @property
    def key(self) -> str:
        """Return how ``ALLOWED`` writes it."""
        return f"{self.module}::{self.name}"


class Uses(NamedTuple):
    """What a module refers to: names of its own, members of anything, and names of other modules."""

    names: set[str]
    members: set[str]
    imported: set[tuple[str, str]]


def shipped(package: Path) -> list[Path]:
    """Return the modules that ship."""
    return sorted(p for p in package.rglob("*.py") if "_pb2" not in p.name)


def definitions(tree: ast.Module, module: str) -> Iterator[Definition]:
    """Yield what a module defines for others."""
    for node in tree.body:
        yield from (Definition(module, name, node.lineno, False) for name in _names(node))
        if isinstance(node, ast.ClassDef) and not {ast.unparse(b).rpartition(".")[2] for b in node.bases} & CALLED_FROM_OUTSIDE:
            yield from (Definition(module, name, member.lineno, True) for member in node.body for name in _names(member))


def _names(node: ast.stmt) -> list[str]:
    names: list[str] = []
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        calls = [d.func for d in node.decorator_list if isinstance(d, ast.Call)]
        names = [] if any(isinstance(c, ast.Attribute) and c.attr in REGISTERS for c in calls) else [node.name]
    elif isinstance(node, ast.Assign):
        names = [t.id for t in node.targets if isinstance(t, ast.Name)]
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        names = [node.target.id]
    return [name for name in names if not name.startswith("_")]


class _Reader(ast.NodeVisitor):
    def __init__(self) -> None:
        self.uses = Uses(set(), set(), set())
        self._inside: list[str] = []
        self._in_function = 0

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        # A function inside another is no definition that counts, so what it hands on to is used.
        counts = not self._in_function
        self._in_function += not isinstance(node, ast.ClassDef)
        self._inside += [node.name] if counts else []
        self.generic_visit(node)
        self._inside = self._inside[:-1] if counts else self._inside
        self._in_function -= not isinstance(node, ast.ClassDef)

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef  # noqa: N815 (the names are of ast)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load) and node.id not in self._inside:
            self.uses.names.add(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load) and node.attr not in self._inside:
            self.uses.members.add(node.attr)
        self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.uses.imported.update((node.module or "", alias.name) for alias in node.names)

    def visit_Constant(self, node: ast.Constant) -> None:
        # A text that is one word may be a name for getattr, or of a column.
        if isinstance(node.value, str) and node.value.isidentifier():
            self.uses.members.add(node.value)


def _uses(tree: ast.Module) -> Uses:
    reader = _Reader()
    reader.visit(tree)
    return reader.uses


def unused(root: Path = ROOT) -> list[Definition]:
    """Return the names that only their definition or a test knows."""
    package = root / "src" / "penstock"
    beside = [*(root / "benchmarks").rglob("*.py"), *(root / "scripts").glob("*_doc.py")]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in [*shipped(package), *beside]}
    by_path = {path: _uses(tree) for path, tree in trees.items()}
    members = set().union(*(u.members for u in by_path.values()))
    imported = set().union(*(u.imported for u in by_path.values()))
    found = []
    for path in shipped(package):
        module = path.relative_to(package).as_posix()
        dotted = "penstock." + module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        folder, _, name = dotted.rpartition(".")
        for one in definitions(trees[path], module):
            by_name = one.name in by_path[path].names or (dotted, one.name) in imported
            by_module = (folder, name) in imported and one.name in members
            catalogued = module.startswith("sink/") and one.name in CATALOGUED
            if not (catalogued or (one.name in members if one.member else by_name or by_module)):
                found.append(one)
    return found


def main() -> int:
    """Print what is found; return whether there is anything."""
    found = [one for one in unused() if one.key not in ALLOWED]
    for one in found:
        print(f"src/penstock/{one.module}:{one.line} {one.name}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
