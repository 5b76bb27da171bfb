"""Checks repository conventions."""

from __future__ import annotations

import ast
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "tidemill"

FUNCTION_LINES_MAX = 70
LONG_FILE_LINES = 550
"""A longer file is listed with a reason in the section "Long files" of docs/architecture.md. No limit."""

PRINTING = {
    "tidemill/server/startup_report.py": "the line that reports the listening broker",
    "tidemill/server/process.py": "errors before there is a log",
    "tidemill/pipeline/java.py": "a command of its own",
}
"""Modules outside ``cli`` that write to the terminal, with the reason."""

HOSTS = {"adoptium.net", "example.org", "keepachangelog.com", "semver.org", "www.apache.org"}
"""The only hosts that the repository names: sources of further documentation."""

MACHINE_PATH = re.compile(r"(?<![\w.{}/-])/(?:work|root|Users|mnt|home/(?!linuxbrew/))[/\w]")
"""A path of a developer's machine."""

PLAIN_BASES = {"object", "Protocol", "NamedTuple", "Generic", "IntEnum", "Enum"}
"""Bases that document no methods of a class."""

UNFINISHED = re.compile(r"\b(?:TODO|FIXME|HACK)\b")
LINK = re.compile(r"\]\(([^)\s]+)\)")
MODULE = re.compile(r"`(\w+/[\w/]+\.py)`")
LONG_FILE = re.compile(r"^\| `([\w/]+\.py)` \| (\S.*) \|$", re.M)
PAGE = re.compile(r"\bdocs/[\w./-]+\.md\b")
FORMAT_EXAMPLE = re.compile(r"\bexample_bytes\(\"([\w-]+\.md)\"\)")
TABLE_RULE = re.compile(r"=+(?: +=+)+")
REFERENCE = re.compile(r":(?:mod|class|func|meth|attr|data):`~?(tidemill[\w.]*)`")
PASSED_OVER = re.compile(r"\.|__pycache__$|node_modules$|.*\.egg-info$")
TEXT_SUFFIXES = {"", ".cfg", ".css", ".html", ".js", ".json", ".md", ".py", ".toml", ".txt", ".yml"}
MADE_HERE = {"build", "dist", "demo", "metastore_db", "spark-warehouse", "tidemill-data"}
"""Folders of the root that builds and runs create."""

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Definition: TypeAlias = Function | ast.ClassDef


@cache
def sources() -> dict[str, ast.Module]:
    """Returns the syntax trees of all modules, by their paths below ``src``."""
    return {
        path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text(), str(path))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


@cache
def texts() -> dict[str, str]:
    """Returns all text files of the repository, by their paths."""
    found = {}
    for folder, folders, files in os.walk(ROOT):
        made = MADE_HERE if Path(folder) == ROOT else set()
        folders[:] = sorted(name for name in folders if name not in made and not PASSED_OVER.match(name))
        for name in sorted(files):
            path = Path(folder, name)
            if not name.startswith(".") and path.suffix in TEXT_SUFFIXES:
                found[path.relative_to(ROOT).as_posix()] = path.read_text()
    return found


def lines_like(pattern: re.Pattern[str], keep: Callable[[str], bool] = lambda name: True) -> list[str]:
    """Returns ``path:line: text`` of every line that matches ``pattern``."""
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts().items()
        if keep(name)
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def functions(tree: ast.AST) -> Iterator[Function]:
    """Returns all functions and methods, with nested functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def public(body: list[ast.stmt]) -> Iterator[Definition]:
    """Returns the public functions and classes of the body of a module or class."""
    for node in body:
        if isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        ) and not node.name.startswith("_"):
            yield node


def class_of(path: str, base: ast.expr) -> tuple[str, ast.ClassDef] | None:
    """Returns the module and definition of a base class; None for a class of another package."""
    plain = base.value if isinstance(base, ast.Subscript) else base
    if not isinstance(plain, ast.Name):
        return None
    for node in sources()[path].body:
        if isinstance(node, ast.ClassDef) and node.name == plain.id:
            return path, node
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("tidemill"):
            continue
        home = f"{(node.module or '').replace('.', '/')}.py"
        if any((alias.asname or alias.name) == plain.id for alias in node.names) and home in sources():
            return class_of(home, plain)
    return None


def inherits_docstring(path: str, node: ast.ClassDef, method: str) -> bool:
    """Returns whether the method overrides a documented method, or may override one of another package."""
    for base in node.bases:
        found = class_of(path, base)
        if found is None:
            if ast.unparse(base).partition("[")[0] not in PLAIN_BASES:
                return True
            continue
        home, parent = found
        if any(member.name == method and ast.get_docstring(member) for member in public(parent.body)):
            return True
        if inherits_docstring(home, parent, method):
            return True
    return False


def is_overload(node: Definition) -> bool:
    """Returns whether it is a setter or an overload of a documented function."""
    names = [ast.unparse(decorator) for decorator in node.decorator_list]
    return any(name.endswith((".setter", "overload")) for name in names)


def test_functions_fit_on_a_page() -> None:
    long = [
        f"{path}:{node.lineno} {node.name} has {(node.end_lineno or 0) - node.lineno + 1} lines"
        for path, tree in sources().items()
        for node in functions(tree)
        if (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert long == []


def long_files() -> dict[str, str]:
    """Reads the reasons for long files from docs/architecture.md, by path below ``src/tidemill``."""
    section = texts()["docs/architecture.md"].partition("\n## Long files\n")[2].partition("\n## ")[0]
    return dict(LONG_FILE.findall(section))


def test_files_hold_one_concept() -> None:
    counts = {path: len((SOURCE / path).read_text().splitlines()) for path in sources()}
    long = {
        path.removeprefix("tidemill/"): count for path, count in counts.items() if count > LONG_FILE_LINES
    }
    listed = long_files()
    unlisted = [
        f"{path} has {count} lines: does it hold two concepts? Split them, or list the file with the reason "
        'why it is one in docs/architecture.md, "Long files"'
        for path, count in long.items()
        if path not in listed
    ]
    assert unlisted == []
    short = [
        f"{path} has no more than {LONG_FILE_LINES} lines: remove it from docs/architecture.md"
        for path in listed
        if path not in long
    ]
    assert short == []


def test_the_documents_name_modules_that_exist() -> None:
    named = {
        (page, path)
        for page, text in texts().items()
        if page.endswith(".md") and page != "CHANGELOG.md"
        for path in MODULE.findall(text)
    }
    assert len({page for page, _ in named}) > 1
    assert (
        sorted(one for one in named if f"tidemill/{one[1]}" not in sources() and one[1] not in texts()) == []
    )


def broken_rows(docstring: str) -> list[str]:
    """Lists the rows of tables in a docstring whose cells reach into the margin of a column."""
    broken = []
    rule = ""
    for line in docstring.splitlines():
        if not line:
            rule = ""
        elif not rule:
            rule = line if TABLE_RULE.fullmatch(line) else ""
        elif TABLE_RULE.fullmatch(line):
            broken += [line] if line != rule else []
        else:
            margins = (match.span() for match in re.finditer(" +", rule))
            broken += [line for start, end in margins if line[start:end].strip()]
    return broken


def test_the_columns_of_tables_are_as_wide_as_their_cells() -> None:
    broken = [
        f"{path}: {row}"
        for path, tree in sources().items()
        for node in [
            tree,
            *(
                node
                for node in ast.walk(tree)
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            ),
        ]
        for row in broken_rows(ast.get_docstring(node) or "")
    ]
    assert broken == []


def test_invariants_are_checks_that_raise_in_production() -> None:
    asserts = [
        f"{path}:{node.lineno}"
        for path, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
    ]
    assert asserts == []


def test_only_commands_print() -> None:
    printing = {
        path
        for path, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }
    assert {path for path in printing if not path.startswith("tidemill/cli/")} == set(PRINTING)


def test_no_unfinished_work_is_marked() -> None:
    assert lines_like(UNFINISHED, lambda name: not name.startswith("tests/house/")) == []


def test_no_file_contains_the_path_of_a_machine() -> None:
    assert lines_like(MACHINE_PATH, lambda name: not name.startswith("tests/house/")) == []


def test_the_repository_names_only_allowed_hosts() -> None:
    hosts = {
        urlsplit(address).hostname or ""
        for text in texts().values()
        for address in re.findall(r"https?://[\w.-]+(?::\d+)?", text)
    }
    named = {host for host in hosts if re.search(r"[a-z]\.[a-z]", host)}
    assert {host for host in named if host not in HOSTS and not host.endswith(".example.org")} == set()


def test_every_module_has_a_docstring() -> None:
    assert [path for path, tree in sources().items() if not ast.get_docstring(tree)] == []


def test_every_public_name_has_a_docstring() -> None:
    silent = []
    for path, tree in sources().items():
        if path.rpartition("/")[2].startswith("_") and not path.endswith("__init__.py"):
            continue
        for node in public(tree.body):
            if not ast.get_docstring(node):
                silent.append(f"{path}:{node.lineno} {node.name}")
            if not isinstance(node, ast.ClassDef):
                continue
            silent += [
                f"{path}:{member.lineno} {node.name}.{member.name}"
                for member in public(node.body)
                if not ast.get_docstring(member)
                and not is_overload(member)
                and not inherits_docstring(path, node, member.name)
            ]
    assert silent == []


def test_compiled_modules_exist() -> None:
    lines = (ROOT / "compiled_modules.txt").read_text().splitlines()
    named = [line for line in lines if line and not line.startswith("#")]
    assert [name for name in named if not (ROOT / name).is_file()] == []
    assert [name for name, count in Counter(named).items() if count > 1] == []


VALUES = {"i16", "i32", "i64", "int", "bool", "bytes", "str", "tuple", "list", "None", "ErrorCode", "Final"}
"""Types that refer to no object which could refer back; a bare ``Final`` is that of an argument."""


def is_acyclic(node: ast.ClassDef) -> bool:
    return any("acyclic=True" in ast.unparse(one) for one in node.decorator_list)


def test_acyclic_compiled_classes_refer_to_values_only() -> None:
    """A reference to any other object could form a cycle, which would never be freed."""
    found = [
        (path, node)
        for path, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and is_acyclic(node)
    ]
    assert found
    named = VALUES | {node.name for _, node in found}
    wrong = []
    for path, node in found:
        made = next(one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__")
        for one in ast.walk(made):
            if isinstance(one, (ast.AnnAssign, ast.arg)) and one.annotation is not None:
                names = {name.id for name in ast.walk(one.annotation) if isinstance(name, ast.Name)}
                wrong += [f"{path}:{one.lineno} {node.name} refers to {name}" for name in names - named]
    assert wrong == []


def test_named_make_targets_exist() -> None:
    lines = (ROOT / "Makefile").read_text().splitlines()
    announced = next(line for line in lines if line.startswith(".PHONY:")).split()[1:]
    rules = [line.partition(":")[0] for line in lines if re.match(r"[a-z]+:", line)]
    assert sorted(rules) == sorted(announced)
    asked = {word for text in texts().values() for word in re.findall(r"(?:``?|^    )make ([a-z]+)\b", text)}
    assert asked - set(rules) == set()


def test_pages_that_the_code_names_exist() -> None:
    missing = []
    for name, text in texts().items():
        pages = PAGE.findall(text) + [f"docs/formats/{page}" for page in FORMAT_EXAMPLE.findall(text)]
        missing += [f"{name} names {page}" for page in pages if not (ROOT / page).is_file()]
    assert missing == []


def test_modules_that_the_architecture_names_exist() -> None:
    text = texts()["docs/architecture.md"]
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", text))
    assert len(named) > 30
    assert sorted(name for name in named if f"tidemill/{name}" not in sources()) == []


def heading_ids(text: str) -> set[str]:
    """Returns the anchors of the headings of a page."""
    headings = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", sorted(name for name in texts() if name.endswith(".md")))
def test_links_between_pages_resolve(name: str) -> None:
    broken = []
    for link in LINK.findall(texts()[name]):
        if "://" in link or link.startswith("mailto:"):
            continue
        target, _, anchor = link.partition("#")
        path = (ROOT / name).parent / target if target else ROOT / name
        ids = heading_ids(path.read_text()) if anchor and path.is_file() else {anchor}
        if not path.exists() or anchor not in ids:
            broken.append(link)
    assert broken == []


def names_of(body: list[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """Returns the names that a body defines, with the bodies of classes."""
    found: dict[str, list[ast.stmt]] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = []
        elif isinstance(node, ast.ClassDef):
            found[node.name] = node.body
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = []
        elif isinstance(node, ast.Assign):
            found |= {target.id: [] for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.If):
            found |= names_of(node.body)
    return found


def is_there(reference: str) -> bool:
    """Returns whether a dotted name is a module of the package, or a definition of a module or class."""
    parts = reference.split(".")
    for count in range(len(parts), 0, -1):
        inside = "/".join(parts[:count])
        tree = sources().get(f"{inside}.py") or sources().get(f"{inside}/__init__.py")
        if tree is None:
            continue
        body = tree.body
        for part in parts[count:]:
            names = names_of(body)
            if part not in names:
                return False
            body = names[part]
        return True
    return False


def test_references_in_docstrings_resolve() -> None:
    broken = [
        f"{name} refers to {reference}"
        for name, text in texts().items()
        if name.startswith("src/")
        for reference in REFERENCE.findall(text)
        if not is_there(reference)
    ]
    assert broken == []


def test_names_of_test_files_are_unique() -> None:
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
