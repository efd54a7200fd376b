"""Keeps the house tidy: names, imports and the map in ARCHITECTURE.md, each rule an ordinary failing test.

Where a rule bans something, its message names what to use instead.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = "src/duramen/"

MODULE_LINES_MAX = 800

BANNED_NAMES = {"core", "utils", "util", "common", "helpers", "helper", "misc", "manager", "managers", "impl"}

# The three places where any exception may arrive and the show must go on: the connection loop (a request that fails
# is answered), the supervisors of callbacks and worker threads (one per world: server, embedded, simulated), and the
# command line's main. Cleaning up and raising on is not catching.
BROAD_EXCEPT_ALLOWED = {
    "src/duramen/server/api/acceptor.py",
    "src/duramen/server/api/request.py",
    "src/duramen/server/net/loop.py",
    "src/duramen/server/net/os_ports.py",
    "src/duramen/embedded/threads.py",
    "src/duramen/embedded/world.py",
    "src/duramen/sim/world/executor.py",
    "src/duramen/sim/world/loop.py",
    "src/duramen/cli/main.py",
}

# Who may write to the terminal: commands, and the server's own main for its one line when it is ready or cannot start.
PRINT_ALLOWED = (LIBRARY + "cli/", LIBRARY + "server/main.py")

# Commands (loaded when they are called), optional extras and what a start need not wait for may be imported late.
LATE_IMPORTS_ALLOWED = tuple(
    LIBRARY + part for part in ("cli/", "spark/", "config/registry.py", "storage/compaction/key_map.py")
)

# The message compiler executes the source it has just written itself; nothing else makes code from text.
EXEC_ALLOWED = (LIBRARY + "wire/",)

BANNED_IMPORTS = {
    "pickle": "a declared format: wire/ or json",
    "marshal": "a declared format: wire/ or json",
    "shelve": "storage/",
    "dill": "a declared format",
    "telnetlib": "socket",
}


@cache
def tracked() -> tuple[str, ...]:
    """Every file under version control that is still there, as paths relative to the root."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout: the list of tracked files is unknown")
    names = listed.stdout.decode().split("\0")
    return tuple(name for name in names if name and (ROOT / name).is_file())


def python_files(*prefixes: str) -> Iterator[str]:
    return (name for name in tracked() if name.endswith(".py") and (not prefixes or name.startswith(prefixes)))


@cache
def source(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(source(name), filename=name)


@pytest.fixture(scope="module", autouse=True)
def forget() -> Iterator[None]:
    """The trees of all files are half a gigabyte that later tests have no use for."""
    yield
    tree.cache_clear()


def report(found: list[str], rule: str) -> None:
    assert not found, rule + ":\n  " + "\n  ".join(found)


def test_there_is_something_to_check() -> None:
    assert len(list(python_files(LIBRARY))) > 10


def test_modules_stay_short() -> None:
    sizes = {name: source(name).count("\n") for name in python_files()}
    report(
        [f"{name}: {lines} lines" for name, lines in sizes.items() if lines > MODULE_LINES_MAX],
        f"a module has at most {MODULE_LINES_MAX} lines: split it by noun",
    )


def test_names_say_what_they_hold() -> None:
    found = [name for name in python_files() if BANNED_NAMES & {part.removesuffix(".py") for part in name.split("/")}]
    report(found, "these names could hold anything: name the noun instead")


def test_test_modules_have_names_of_their_own() -> None:
    """pytest imports test modules by their base name: two of one name cannot be collected together."""
    names = [
        name.split("/")[-1] for name in python_files("tests/") if not name.endswith(("__init__.py", "conftest.py"))
    ]
    report(sorted({name for name in names if names.count(name) > 1}), "give each test module a name of its own")


def test_modules_say_what_they_own() -> None:
    found = [name for name in python_files() if source(name).strip() and not ast.get_docstring(tree(name))]
    report(found, "a module opens with a sentence that says what it owns")
    empty = [name for name in python_files("src/") if not source(name).strip()]
    report(empty, "a package says in its __init__ what it is for")


def broad(handler: ast.ExceptHandler) -> bool:
    """Whether it catches everything and keeps it."""
    caught = handler.type
    last = handler.body[-1]
    if isinstance(last, ast.Raise) and last.exc is None:
        return False
    names = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(n is None or (isinstance(n, ast.Name) and n.id in {"Exception", "BaseException"}) for n in names)


def test_broad_except_only_at_the_edges() -> None:
    found = [
        f"{name}:{node.lineno}"
        for name in python_files("src/", "demo/")
        if name not in BROAD_EXCEPT_ALLOWED
        for node in ast.walk(tree(name))
        if isinstance(node, ast.ExceptHandler) and broad(node)
    ]
    report(found, f"catch what you expect; everything is caught only in {', '.join(sorted(BROAD_EXCEPT_ALLOWED))}")


def test_the_library_does_not_print() -> None:
    found = [
        f"{name}:{node.lineno}"
        for name in python_files(LIBRARY)
        if not name.startswith(PRINT_ALLOWED)
        for node in ast.walk(tree(name))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    report(found, "the library logs or raises; only cli/ writes to the terminal")


def test_imports_stand_at_the_top() -> None:
    found = [
        f"{name}:{inner.lineno}"
        for name in python_files("src/", "demo/")
        if not name.startswith(LATE_IMPORTS_ALLOWED)
        for outer in ast.walk(tree(name))
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(outer)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    ]
    report(found, "an import inside a function hides a cycle: move what both need one layer down")


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.split(".")[0] for alias in node.names]
    return [node.module.split(".")[0]] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []


def makes_code(node: ast.AST, name: str) -> str | None:
    """The name of a call that turns data into code, or None."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Name) and node.func.id in {"eval", "exec"}:
        return None if node.func.id == "exec" and name.startswith(EXEC_ALLOWED) else node.func.id
    if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
        called = f"{node.func.value.id}.{node.func.attr}"
        return called if called in {"yaml.load", "yaml.unsafe_load"} else None
    return None


def test_data_never_becomes_code() -> None:
    found = []
    for name in python_files():
        for node in ast.walk(tree(name)):
            found += [
                f"{name}: {module}; use {BANNED_IMPORTS[module]}"
                for module in imported(node)
                if module in BANNED_IMPORTS
            ]
            if call := makes_code(node, name):
                found.append(f"{name}:{node.lineno}: {call}()")  # type: ignore[attr-defined]
    report(found, "bytes from outside are parsed, never executed")


def test_nothing_is_left_for_later() -> None:
    marks = re.compile(r"\b(" + "|".join(["FIX" + "ME", "TO" + "DO", "X" + "XX", "HA" + "CK"]) + r")\b")
    found = [
        f"{name}:{number}"
        for name in python_files()
        for number, line in enumerate(source(name).splitlines(), 1)
        if marks.search(line)
    ]
    report(found, "finish it, or name the gap in the module's docstring")


# Spelled in pieces, so that this file does not name them.
PRIVATE = re.compile(
    "|".join(
        [
            r"(?<![\w.])/(?:home|Users)/[a-z]\w*/",
            r"(?<![\w.])/root/\w",
            r"(?<![\w./}])/work/(?:main|shared)",
            *(
                re.escape(host[0] + "." + host[1])
                for host in [
                    ("pypi", "org"),
                    ("pythonhosted", "org"),
                    ("repo1.maven", "org"),
                    ("repo.maven.apache", "org"),
                    ("registry.npmjs", "org"),
                    ("crates", "io"),
                    ("deb.debian", "org"),
                ]
            ),
        ]
    )
)


def test_no_machine_and_no_registry_is_named() -> None:
    found = []
    for name in tracked():
        try:
            text = source(name)
        except UnicodeDecodeError:
            continue
        found += [f"{name}:{n}" for n, line in enumerate(text.splitlines(), 1) if PRIVATE.search(line)]
    report(found, "the project runs anywhere: no path of one machine, no registry's address (PATH and pip know theirs)")


def folder_table() -> dict[str, str]:
    """The rows of the folder table in ARCHITECTURE.md: path → what it is."""
    rows = re.findall(r"^\| `([^`]+)` \| (.+?) \|", source("ARCHITECTURE.md"), flags=re.MULTILINE)
    return dict(rows)


def test_the_map_matches_the_tree() -> None:
    table = folder_table()
    there = set()
    for name in tracked():
        parts = name.split("/")
        if parts[0].startswith(".") or len(parts) == 1:
            continue
        if name.startswith(LIBRARY):
            module = parts[2]
            if module not in {"__init__.py", "py.typed"}:
                there.add(LIBRARY + module + ("/" if len(parts) > 3 else ""))
        elif parts[0] in {"src", "tests", "docs"} and len(parts) > 2:
            there.add(f"{parts[0]}/{parts[1]}/")
        elif parts[0] not in {"src", "tests", "docs"}:
            there.add(parts[0] + "/")
    report(sorted(there - table.keys()), "missing in the folder table of ARCHITECTURE.md")
    report(sorted(table.keys() - there), "in the folder table of ARCHITECTURE.md but not in the tree")


def test_every_package_has_its_page() -> None:
    pages = {name.removeprefix("docs/internals/") for name in tracked() if name.startswith("docs/internals/")}
    packages = {name.split("/")[2] for name in python_files(LIBRARY) if name.count("/") > 2}
    found = [package for package in packages if not any(re.match(rf"{package}(-.*)?\.md", page) for page in pages)]
    report(sorted(found), "no page in docs/internals/")


def test_the_pages_name_modules_that_exist() -> None:
    names = tracked()
    found = []
    for page in names:
        if page.startswith("docs/internals/"):
            for named in re.findall(r"`((?:\w+/)*\w+\.py)`", source(page)):
                if not any(name == named or name.endswith("/" + named) for name in names):
                    found.append(f"{page}: {named}")
    report(found, "a page names a module that is not there")


def test_links_in_the_documents_lead_somewhere() -> None:
    found = []
    for name in tracked():
        if not name.endswith(".md"):
            continue
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", source(name)):
            if "://" not in target and not (ROOT / name).parent.joinpath(target).exists():
                found.append(f"{name}: {target}")
    report(found, "a link leads nowhere")


def defined() -> set[str]:
    """Classes, functions as `name()` and methods as `Class.name` of the whole library."""
    names = set()
    for name in python_files(LIBRARY):
        for node in tree(name).body:
            if isinstance(node, ast.FunctionDef):
                names.add(f"{node.name}()")
            if isinstance(node, ast.ClassDef):
                methods = [inner.name for inner in node.body if isinstance(inner, ast.FunctionDef)]
                names |= {node.name, *(f"{node.name}.{method}" for method in methods)}
    return names


def test_the_journey_names_what_exists() -> None:
    known = defined()
    found = []
    for named in re.findall(r"`([^`]+)`", source("docs/journey.md")):
        if re.fullmatch(r"[\w/]+(\.py|/)", named):
            if not named.startswith("src/") and not (ROOT / LIBRARY / named).exists():
                found.append(named)
        elif re.fullmatch(r"[A-Z]\w+(\.\w+)?|\w+\(\)", named) and named not in known:
            found.append(named)
    report(found, "docs/journey.md names what is not there")
