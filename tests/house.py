"""What is looked at and not enforced: the largest things, circles, names that stand for several, words of our own.

    python -m tests.house [FOLDER]

prints it of the tree in FOLDER, which is the one it stands in if none is named. `make house` does.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

LARGEST = 10
MODULES_MIN, MODULES_MAX = 3, 16
WORDS = ("told", "behind", "anew", "nobody", "somebody", "gone", "vouch")
"""Each with its inflections; the field has other words."""

DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def modules_named(node: ast.AST, known: Container[str]) -> Iterator[str]:
    """The modules among `known` that an import statement names; of `from a import b` it is `a.b`, if that is one."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)
    elif isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            if full in known or node.module in known:
                yield full if full in known else node.module


def import_graph(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Module → what it imports of the others, under TYPE_CHECKING and inside functions, too."""
    return {
        module: {named for node in ast.walk(tree) for named in modules_named(node, trees)} - {module}
        for module, tree in trees.items()
    }


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one module (Tarjan)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        path.append(module)
        for other in graph[module]:
            if other not in number:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in path:
                lowest[module] = min(lowest[module], number[other])
        if lowest[module] == number[module]:
            at = path.index(module)
            if len(path) > at + 1:
                found.append(sorted(path[at:]))
            del path[at:]

    for module in graph:
        if module not in number:
            visit(module)
    return found


def library_trees(root: Path) -> dict[str, ast.Module]:
    """Module → its tree, of all modules of the library."""
    trees = {}
    for path in sorted((root / "src").rglob("*.py")):
        name = ".".join(path.relative_to(root / "src").with_suffix("").parts).removesuffix(".__init__")
        trees[name] = ast.parse(path.read_text(encoding="utf-8"))
    return trees


def lines_of(node: DOCUMENTED) -> int:
    """From the `def` or `class` line to the last one; of a module all."""
    if isinstance(node, ast.Module):
        return node.body[-1].end_lineno or 0 if node.body else 0
    return (node.end_lineno or node.lineno) - node.lineno + 1


def attributes_of(node: ast.ClassDef) -> set[str]:
    """What the methods of a class set on `self`, and what its body annotates."""
    found = {n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            found |= {inner.attr} if isinstance(inner.value, ast.Name) and inner.value.id == "self" else set()
    return found


def comments(text: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Strings that stand alone, those under an attribute included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def prose(root: Path) -> Iterator[str]:
    """Docstrings and comments of all Python, and the documents; what was measured once is not among them."""
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if parts[0].startswith(".") or parts[:2] == ("benchmarks", "results") or "__pycache__" in parts:
            continue
        if path.suffix == ".md":
            yield path.read_text(encoding="utf-8")
        elif path.suffix == ".py" and path != Path(__file__):
            text = path.read_text(encoding="utf-8")
            yield from comments(text)
            yield from docstrings(ast.parse(text))


def paragraphs(root: Path) -> Iterator[tuple[int, str]]:
    """Words and place of each paragraph of docs/; a list's entries and a table's rows are paragraphs, code is none."""
    for path in sorted((root / "docs").rglob("*.md")):
        text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for paragraph in re.split(r"\n\s*\n|\n(?=\s*[-*|]|\s*\d+\. )", text):
            words = paragraph.split()
            yield len(words), f"{path.relative_to(root)}: {' '.join(words[:8])} ..."


def show(title: str, rows: Iterable[tuple[object, object]]) -> None:
    print(f"\n{title}")
    for number, what in rows:
        print(f"  {number:>6}  {what}")


def largest(found: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    return sorted(found, reverse=True)[:LARGEST]


def print_sizes(trees: dict[str, ast.Module]) -> None:
    show("largest modules (lines)", largest((lines_of(tree), module) for module, tree in trees.items()))
    nodes = [(module, node) for module, tree in trees.items() for node in ast.walk(tree)]
    classes = [(module, node) for module, node in nodes if isinstance(node, ast.ClassDef)]
    functions = [(module, node) for module, node in nodes if isinstance(node, ast.FunctionDef)]
    show("largest classes (lines)", largest((lines_of(node), f"{module}.{node.name}") for module, node in classes))
    counted = ((len(attributes_of(node)), f"{module}.{node.name}") for module, node in classes)
    show("largest classes (attributes)", largest(counted))
    show("largest functions (lines)", largest((lines_of(node), f"{module}: {node.name}") for module, node in functions))


def print_names(trees: dict[str, ast.Module]) -> None:
    sizes = Counter(module.rpartition(".")[0] for module in trees if module.count(".") > 1)
    odd = [(size, name) for name, size in sorted(sizes.items()) if not MODULES_MIN <= size <= MODULES_MAX]
    show(f"packages outside {MODULES_MIN} to {MODULES_MAX} modules", odd)
    found = circles(import_graph(trees))
    rows = [(len(c), " ".join(c[:6]) + (" ..." if len(c) > 6 else "")) for c in sorted(found, key=len, reverse=True)]
    show(f"circles of modules, type-only imports included: {len(found)}", rows)
    places: dict[str, list[str]] = {}
    for module, tree in trees.items():
        if not module.startswith("duramen.wire.messages"):
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name, []).append(module.removeprefix("duramen."))
    several = {name: where for name, where in places.items() if len(where) > 1}
    rows = [(len(where), f"{name}: {', '.join(where)}") for name, where in sorted(several.items())]
    show(f"class names that stand for several classes: {len(several)}", rows)


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()
    trees = library_trees(root)
    print(f"{len(trees)} modules, {sum(map(lines_of, trees.values())):,} lines in src/")
    print_sizes(trees)
    print_names(trees)
    show("longest paragraphs of docs/ (words)", largest(paragraphs(root)))
    text = "\n".join(prose(root))
    counts = [(len(re.findall(rf"\b{word}\w*", text, flags=re.IGNORECASE)), word) for word in WORDS]
    show("words of our own in docstrings, comments and documents", counts)


if __name__ == "__main__":
    main()
