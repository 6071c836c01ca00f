import re
from pathlib import Path

import tests_doc

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "internals" / "tests.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == tests_doc.render()


def test_the_tests_of_every_module_are_found_by_its_name_or_on_the_page() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]*) \| ([^|]*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    on_page = {module: re.findall(r"`([^`]+)`", tests) for module, tests, _ in rows}
    named = {path.stem.removeprefix("test_") for path in (ROOT / "tests").rglob("test_*.py")}
    package = ROOT / "src" / "penstock"
    for path in package.rglob("*.py"):
        module = path.relative_to(package).as_posix()
        if "_pb2" in module or path.stem in tests_doc.WITHOUT_TESTS:
            continue
        assert path.stem in named or on_page.get(module), f"no test of {module}"
    assert all((ROOT / "tests" / test).is_file() for tests in on_page.values() for test in tests)


def test_a_module_is_reached_through_the_nearest_that_a_test_imports() -> None:
    importers = {"a.deep": {"a.mid", "b.far"}, "a.mid": {"a.top"}, "a.top": set(), "b.far": set()}
    here, there = tests_doc.TESTS / "unit" / "test_here.py", tests_doc.TESTS / "spark" / "test_there.py"
    direct = {"a.deep": [], "a.mid": [], "a.top": [there, here], "b.far": []}
    assert tests_doc._nearest("a.deep", importers, direct) == ("a.top", [here, there])
    assert tests_doc._nearest("a.top", importers, direct) == ("", [here, there])
    assert tests_doc._nearest("b.far", importers, direct) == ("", [])
