"""Keeps the house tidy: names, imports and the map in ARCHITECTURE.md, each rule an ordinary failing test.

Where a rule bans something, its message names what to use instead.
"""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.house import circles, import_graph, modules_named
from tests.tidy_exceptions import (
    CIRCLES,
    DECLARING_BASES,
    GERUNDS,
    PRIVATE_STRINGS,
    REPEATED_CLASSES,
    SETTINGS_BY_STRING,
    SIM_INSIDE_STORAGE,
    SPREAD_CLASSES,
    TESTS_THAT_LOOK_UP,
    UNNAMED_TESTS,
)

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = "src/duramen/"

LIBRARY_LINES_MAX, TEST_LINES_MAX = 700, 800

BANNED_NAMES = {"core", "utils", "util", "common", "helpers", "helper", "misc", "manager", "managers", "impl"}

# The three places where any exception may arrive and the show must go on: the connection loop (a request that fails
# is answered), the supervisors of callbacks and worker threads (one per world: server, embedded, simulated; and of work
# that threads share), and the command line's main. Cleaning up and raising on is not catching.
BROAD_EXCEPT_ALLOWED = {
    "src/duramen/server/api/request_decoder.py",
    "src/duramen/server/api/request.py",
    "src/duramen/server/net/loop.py",
    "src/duramen/server/net/os_ports.py",
    "src/duramen/storage/files/parallel.py",
    "src/duramen/librdkafka.py",  # the thread of a commit hands on whatever ended it
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
    LIBRARY + part
    for part in ("cli/", "spark/", "config/registry.py", "storage/compaction/key_map.py", "streams/namespace.py")
)

# The message compiler executes the source it has just written itself; nothing else makes code from text.
EXEC_ALLOWED = (LIBRARY + "wire/",)

# Words in -ing that are nouns of the field.
NOUNS = {"housekeeping", "ring", "setting", "staging"}

# Names that several sub-packages of one package may have, each with its own.
REPEATED_MODULES = {"__init__", "__main__", "commands", "machine", "records", "settings", "state"}

# What may look inside the storage and name what is private: it takes guards out, or counts the states that runs reach.
LOOKS_INSIDE = (LIBRARY + "sim/mutations/", LIBRARY + "sim/check/coverage")

# What tests of any package may import: the simulated world implements the ports, and programs are started by a module.
FOR_EVERY_TEST = ("duramen.sim.world", "duramen.__main__")

# A node, from the server down, reaches files, sockets, threads, time and randomness through the ports alone.
NODE = tuple(LIBRARY + part for part in ("server/", "partition/", "storage/", "machines/", "wire/", "config/"))
WORLD = {"asyncio", "concurrent", "fcntl", "http", "mmap", "multiprocessing", "os", "random", "secrets", "select"}
WORLD |= {"selectors", "shutil", "signal", "socket", "subprocess", "tempfile", "threading", "time"}
WORLD_ALLOWED = {
    LIBRARY + name
    for name in (
        # the ports of the operating system
        "server/net/bound_sockets.py",
        "server/net/named_transport.py",
        "server/net/loop.py",
        "server/net/os_ports.py",
        "storage/files/entropy.py",
        "storage/files/os_disk.py",
        # threads that one call begins and ends; locks, where a job of the executor meets the loop
        "storage/files/parallel.py",
        "storage/files/sync_history.py",
        "storage/log/sync.py",
        # gives other threads a turn between two reads
        "storage/read/read_plan.py",
        # the process, its memory, its log and its metrics
        "server/net/memory_limit.py",
        "server/main.py",
        "server/net/log_writer.py",
        "server/metrics/exposition.py",
        "server/metrics/process_sampler.py",
        "server/metrics/scrape.py",
    )
}

# Programs of their own on asyncio, beside the node.
AWAITS_ALLOWED = (LIBRARY + "client/aio/", LIBRARY + "gateway/", LIBRARY + "streams/")

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
        [
            f"{name}: {lines} lines"
            for name, lines in sizes.items()
            if lines > (LIBRARY_LINES_MAX if name.startswith("src/") else TEST_LINES_MAX)
        ],
        f"a module has at most {LIBRARY_LINES_MAX} lines, {TEST_LINES_MAX} outside src: split it by noun",
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


def test_the_world_is_reached_through_the_ports() -> None:
    found = {name for name in python_files(*NODE) for node in ast.walk(tree(name)) if WORLD & set(imported(node))}
    report(sorted(found - WORLD_ALLOWED), "ask a port (ports.py): the simulator has no other world")
    report(sorted(WORLD_ALLOWED - found), "take these out of WORLD_ALLOWED, they use the ports")


def test_only_clients_await() -> None:
    awaits = ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith
    found = [
        name
        for name in python_files("src/")
        if not name.startswith(AWAITS_ALLOWED)
        if any(isinstance(node, awaits) for node in ast.walk(tree(name)))
    ]
    report(found, "a node is callbacks on one loop, which the simulator runs in the order of a seed")


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


# What the order of packages in .importlinter says, lowest first; names on one line are strangers to each other.
def layers(contract: str) -> list[set[str]]:
    file = configparser.ConfigParser()
    file.read(ROOT / ".importlinter")
    lines = file[f"importlinter:contract:{contract}"]["layers"].split("\n")
    return [{name.strip(" ()") for name in line.split("|")} for line in reversed(lines) if line.strip()]


def module_of(name: str) -> str:
    """`src/duramen/wire/batch.py` → `duramen.wire.batch`; a package is named without its `__init__`."""
    return name.removeprefix("src/").removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def compare(found: Iterable[str], allowed: Iterable[str], rule: str) -> None:
    """What is found has to be in the list of exceptions, and every exception has to be found."""
    report(sorted(set(found) - set(allowed)), rule)
    report(sorted(set(allowed) - set(found)), "take these out of tests/tidy_exceptions.py, they are as they should be")


def test_circles_are_seen() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set(), "f": {"g"}, "g": {"f"}}
    assert sorted(circles(graph)) == [["a", "b", "c"], ["f", "g"]]


def test_modules_form_no_circle() -> None:
    found = circles(import_graph({module_of(name): tree(name) for name in python_files(LIBRARY)}))
    counted = Counter(circle[0].split(".")[1] for circle in found for _ in circle)
    shown = "\n  ".join(" ".join(circle) for circle in found)
    for package in sorted(counted.keys() | CIRCLES.keys()):
        there, allowed = counted[package], CIRCLES.get(package, 0)
        assert there <= allowed, f"{package}: {there} modules import each other in circles, {allowed} may:\n  {shown}"
        assert there or not allowed, f"{package}: no circle is left, take it out of tests/tidy_exceptions.py"


def library_classes() -> list[tuple[str, ast.ClassDef]]:
    return [
        (name, node)
        for name in python_files(LIBRARY)
        for node in ast.walk(tree(name))
        if isinstance(node, ast.ClassDef)
    ]


def bases(node: ast.ClassDef) -> set[str]:
    """The last names of its bases, without what they are parameterised with."""
    return {ast.unparse(base).partition("[")[0].split(".")[-1] for base in node.bases}


def only_declared(node: ast.ClassDef) -> set[str]:
    """Attributes that a class annotates and neither gives a value nor sets in a method."""
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return set()
    declared = {
        inner.target.id
        for inner in node.body
        if isinstance(inner, ast.AnnAssign) and inner.value is None and isinstance(inner.target, ast.Name)
    }
    stored = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
    return declared - stored


def class_values(node: ast.ClassDef) -> set[str]:
    """Attributes that have a value in the body of the class."""
    targets = [target for inner in node.body if isinstance(inner, ast.Assign) for target in inner.targets]
    targets += [inner.target for inner in node.body if isinstance(inner, ast.AnnAssign) and inner.value is not None]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def test_base_classes_set_what_they_declare() -> None:
    """Constants that each subclass gives its value in its body are not meant, nor protocols and records."""
    classes = library_classes()
    found = []
    for name, node in classes:
        if bases(node) & {"Protocol", "NamedTuple", "TypedDict"}:
            continue
        below = [other for _, other in classes if node.name in bases(other)]
        if below and only_declared(node) - set().union(*map(class_values, below)):
            found.append(f"{module_of(name)}.{node.name}")
    compare(found, DECLARING_BASES, "a base class declares attributes of its subclass: make it an attribute of that")


def test_a_class_stands_in_one_file() -> None:
    """A base class that one class of another file has, and that nothing else names, is half of that class."""
    named: dict[str, Counter[str]] = {}
    for name in python_files(LIBRARY):
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.Name | ast.Attribute):
                identifier = node.id if isinstance(node, ast.Name) else node.attr
                named.setdefault(identifier, Counter())[name] += 1
    classes = library_classes()
    below = [(base, name) for name, node in classes for base in bases(node)]
    found = []
    for name, node in classes:
        files = [file for base, file in below if base == node.name]
        others = {file: count for file, count in named.get(node.name, {}).items() if file != name}
        if len(files) == 1 and "Protocol" not in bases(node) and others == {files[0]: 1}:
            found.append(f"{module_of(name)}.{node.name}")
    compare(found, SPREAD_CLASSES, "one class in two files: make it whole, or give it a collaborator")


def test_modules_are_named_by_nouns() -> None:
    found = [
        module_of(name)
        for name in python_files(LIBRARY)
        if (word := name.removesuffix(".py").split("/")[-1].split("_")[-1]).endswith("ing") and word not in NOUNS
    ]
    compare(found, GERUNDS, "a module is named by a noun of the field: who does it, or what comes of it")


def test_module_names_are_unique_within_a_package() -> None:
    places: dict[tuple[str, str], list[str]] = {}
    for name in python_files(LIBRARY):
        parts = name.removesuffix(".py").split("/")
        if len(parts) > 3 and parts[-1] not in REPEATED_MODULES:
            places.setdefault((parts[2], parts[-1]), []).append(name)
    found = [" ".join(names) for names in places.values() if len(names) > 1]
    report(found, "two modules of a package have one name: say in it whose they are")


def repeated_classes() -> set[str]:
    """Class names of the library that stand for several classes; messages and their records aside."""
    names = [node.name for name, node in library_classes() if not name.startswith(LIBRARY + "wire/messages/")]
    return {name for name, count in Counter(names).items() if count > 1}


def test_class_names_are_unique() -> None:
    compare(repeated_classes(), REPEATED_CLASSES, "there is a class of this name: the noun in the name says which")


def module_named_by(name: str) -> str | None:
    """The module that a unit test is named after: it stands where that does, as test_<module>[_<aspect>].py."""
    folder = ROOT / LIBRARY / Path(name).parent.relative_to("tests/unit")
    aspect = Path(name).stem.removeprefix("test_")
    there = [path.stem for path in folder.glob("*") if path.suffix == ".py" or (path / "__init__.py").is_file()]
    named = [stem for stem in there if aspect == stem or aspect.startswith(stem + "_")]
    return max(named, key=len, default=None)


def test_unit_tests_are_named_after_what_they_test() -> None:
    found = [
        name for name in python_files("tests/unit/") if Path(name).stem != "conftest" and not module_named_by(name)
    ]
    compare(
        [Path(name).stem for name in found],
        UNNAMED_TESTS,
        "tests/unit/ mirrors src/duramen/: test_<module>.py or test_<module>_<aspect>.py; shared parts: tests/worlds/",
    )


def test_tests_do_not_change_the_import_path() -> None:
    change = re.compile(r"\bsys\.path\.(insert|append|extend)\b|\bsys\.path\s*(\[.*\]\s*)?\+?=[^=]")
    found = [
        f"{name}:{number}"
        for name in python_files("tests/")
        for number, line in enumerate(source(name).splitlines(), 1)
        if change.search(line) and name != "tests/test_tidy.py"
    ]
    report(found, "import it by its whole name: `from tests.worlds.broker_world import ...`")


def test_unit_tests_import_no_package_above_theirs() -> None:
    """Neither themselves nor by way of other tests."""
    height = {package: level for level, packages in enumerate(layers("down")) for package in packages}
    library = {module_of(name) for name in python_files(LIBRARY)}
    tests = {name.removesuffix(".py").replace("/", "."): name for name in python_files("tests/")}
    found = []
    for name in python_files("tests/unit/"):
        own = name.split("/")[2].removeprefix("test_").removesuffix(".py")
        seen, waiting = {name}, [name]
        above = set()
        while waiting:
            for node in ast.walk(tree(waiting.pop())):
                for module in modules_named(node, library):
                    package = module.split(".")[1] if "." in module else own
                    if height[package] > height[own] and not module.startswith(FOR_EVERY_TEST):
                        above.add(package)
                for module in modules_named(node, tests):
                    if tests[module] not in seen:
                        seen.add(tests[module])
                        waiting.append(tests[module])
        if above:
            found.append(Path(name).stem)
    compare(found, TESTS_THAT_LOOK_UP, "a unit test imports a package above its own: it is a test of that package")


CONFIGURATION = re.compile(r"(\b|_)(config|configuration|settings)$")


def constant_attribute(node: ast.AST, functions: Container[str]) -> tuple[str, str] | None:
    """The object and the name in `getattr(object, "name")` and its like."""
    if not (isinstance(node, ast.Call) and len(node.args) > 1 and isinstance(node.args[1], ast.Constant)):
        return None
    called = ast.unparse(node.func).split(".")[-1]
    return (ast.unparse(node.args[0]), str(node.args[1].value)) if called in functions else None


def test_every_route_says_what_it_needs() -> None:
    found = [
        f"{name}:{node.lineno}"
        for name in python_files(LIBRARY + "gateway/")
        for node in ast.walk(tree(name))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "RouteRow"
        if not any(keyword.arg == "right" for keyword in node.keywords)
    ]
    report(found, 'a route without a right stops the gateway: right="read", "write", "admin", KNOWN, LISTED or OPEN')


def test_settings_are_read_by_their_names() -> None:
    found = [
        f"{module_of(name)} {attribute[1]}"
        for name in python_files(LIBRARY)
        for node in ast.walk(tree(name))
        if (attribute := constant_attribute(node, {"getattr", "hasattr"})) and CONFIGURATION.search(attribute[0])
    ]
    compare(found, SETTINGS_BY_STRING, "getattr hides a setting from mypy: name it in the configuration's protocol")


PRIVATE_NAME = re.compile(r"_[a-z]\w*")


def test_private_names_do_not_stand_in_strings() -> None:
    """But for what mutates the engine and what counts its states: an attribute that is renamed has to be found."""
    functions = {"getattr", "hasattr", "setattr", "delattr", "attrgetter"}
    found = []
    for name in python_files(LIBRARY):
        if name.startswith(LOOKS_INSIDE):
            continue
        for node in ast.walk(tree(name)):
            attribute = constant_attribute(node, functions)
            if attribute and attribute[0] != "self" and PRIVATE_NAME.fullmatch(attribute[1]):
                found.append(f"{module_of(name)} {attribute[1]}")
            elif (
                name.startswith(LIBRARY + "sim/")
                and isinstance(node, ast.Call)
                and any(isinstance(arg, ast.Constant) and PRIVATE_NAME.fullmatch(str(arg.value)) for arg in node.args)
            ):
                found.append(f"{module_of(name)} {ast.unparse(node)}")
    compare(found, PRIVATE_STRINGS, "name the attribute in code, or make it public")


def test_the_simulator_looks_inside_storage_in_two_places() -> None:
    inside = {module_of(name) for name in python_files(LIBRARY + "storage/")} - {"duramen.storage"}
    found = [
        module_of(name)
        for name in python_files(LIBRARY + "sim/")
        if not name.startswith(LOOKS_INSIDE)
        if any(True for node in ast.walk(tree(name)) for _ in modules_named(node, inside))
    ]
    compare(found, SIM_INSIDE_STORAGE, "import it from duramen.storage; only mutations and coverage look inside")
