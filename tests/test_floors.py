"""The house: a module imports only its own floor and what lies below, and GPU libraries only in use."""

import ast
from functools import cache
from graphlib import TopologicalSorter

from rooflab.paths import ROOT

PACKAGE = ROOT / "lib" / "rooflab"
FLOORS = {
    0: {"errors", "paths", "rooflab", "words"},
    1: {"hardware", "numerics"},
    2: {"records", "bench", "runtime", "ops", "profile", "doctor", "simt", "dispatch"},
    3: {"studies", "engine"},
    4: {"analysis", "verify", "lab", "view"},
    5: {"claims", "exercises", "pages", "book", "cluster", "cli", "commands", "__main__"},
}
FLOOR_OF = {room: floor for floor, rooms in FLOORS.items() for room in rooms}
GPU_ONLY = {"cupy", "torch", "cuda", "triton", "elftools"}
FILES = sorted(PACKAGE.rglob("*.py"))
LONGEST = 450  # lines


def room(path):
    """The top-level module or package of rooflab that a file belongs to."""
    name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "rooflab" if name == "__init__" else name


@cache
def statements(path):
    """Every node of a file's syntax tree; the first is the module."""
    return list(ast.walk(ast.parse(path.read_text())))


def imports(path, *, top_level):
    """Modules a file imports: dotted names, relative ones resolved."""
    nodes = statements(path)[0].body if top_level else statements(path)
    package = ["rooflab", *path.relative_to(PACKAGE).parts[:-1]]
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def test_every_room_has_a_floor():
    assert {room(path) for path in FILES} <= set(FLOOR_OF)


def test_a_module_imports_only_its_floor_and_below():
    above = []
    for path in FILES:
        own = FLOOR_OF[room(path)]
        for name in imports(path, top_level=False):
            parts = name.split(".")
            if parts[0] == "rooflab" and len(parts) > 1 and FLOOR_OF.get(parts[1], own) > own:
                above.append(f"{path.relative_to(PACKAGE)} (floor {own}) imports {name}")
    assert not above


def test_no_imports_go_in_a_circle():
    modules = {
        ".".join(["rooflab", *path.relative_to(PACKAGE).with_suffix("").parts]): path for path in FILES
    }
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        found = (longest(each, modules) for each in imports(path, top_level=True))
        graph[name] = {each for each in found if each not in ("", "rooflab", name)}
    order = list(TopologicalSorter(graph).static_order())  # CycleError names a circle
    assert len(order) > 100


def test_no_folders_import_each_other():
    """Not even in functions; but the CPU is a target of ops, and simt runs what ops declares."""
    graph: dict[str, set[str]] = {}
    for path in FILES:
        found = {name.split(".")[1] for name in imports(path, top_level=False) if name.startswith("rooflab.")}
        graph.setdefault(room(path), set()).update(found & set(FLOOR_OF) - {room(path), "rooflab"})
    assert "simt" in graph["ops"]
    graph["ops"].remove("simt")
    assert len(list(TopologicalSorter(graph).static_order())) > 20  # CycleError names a circle


def longest(name, modules):
    """The module that a dotted name lies in, or nothing."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def _renamed(alias):
    """Whether an imported module has another name here."""
    return isinstance(alias, ast.alias) and alias.asname and alias.name in {file.stem for file in FILES}


def test_no_module_uses_a_private_name_of_another():
    for path in FILES:
        found = {
            name.rpartition(".")[2] for name in imports(path, top_level=False) if name.startswith("rooflab.")
        }
        modules = {file.stem for file in FILES} & found
        modules |= {
            alias.asname
            for node in statements(path)
            for alias in getattr(node, "names", [])
            if _renamed(alias)
        }
        for node in statements(path):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in modules
            ):
                found.add(node.attr)
        private = {name for name in found if name.startswith("_") and not name.startswith("__")}
        assert not private, f"{path.relative_to(PACKAGE)} uses {private}"


def test_no_module_is_longer_than_a_reader_takes_in():
    assert {path.name: lines for path in FILES if (lines := path.read_text().count("\n")) > LONGEST} == {}


def test_gpu_libraries_are_imported_only_where_they_are_used():
    for path in FILES:
        at_top = {name.split(".")[0] for name in imports(path, top_level=True)}
        assert not at_top & GPU_ONLY, f"{path.relative_to(PACKAGE)} imports {at_top & GPU_ONLY} at its top"
