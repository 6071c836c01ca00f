"""What Penstock is made of: bounds of versions, digests of files, the bill of materials, the audit."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {name: needed for name, needed in PROJECT["optional-dependencies"].items() if name not in {"docs", "test", "dev"}}
IMPORT = re.compile(r"^ *(?:from (?=[\w.]+ import )|import (?=[\w.]+(?: as \w+)?$))(\w+)", re.MULTILINE)
REQUIREMENTS = [*PROJECT["dependencies"], *(one for needed in EXTRAS.values() for one in needed)]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


AUDIT, HASHES, SBOM = script("audit"), script("hashes"), script("sbom")
PINNED = {canonicalize_name(name): version for name, version in AUDIT.pinned((ROOT / "constraints.txt").read_text(encoding="utf-8"))}


@pytest.mark.parametrize("text", REQUIREMENTS)
def test_a_dependency_has_a_lower_bound_that_its_pin_keeps(text: str) -> None:
    needed = Requirement(text)
    assert any(one.operator == ">=" for one in needed.specifier), text
    assert needed.specifier.contains(PINNED[canonicalize_name(needed.name)])


def test_the_bill_names_what_runs_and_no_tool() -> None:
    packages = SBOM.installed("penstock")
    # The installation may be older than the file; what it has is what counts.
    direct = {canonicalize_name(Requirement(one).name) for one in REQUIREMENTS} & packages.keys()
    bill = SBOM.document(packages, "penstock")
    listed = {one["name"]: one for one in bill["components"]}
    assert {"fastapi", "starlette", "anyio", "pyspark", "py4j", "cryptography", "cffi"} <= listed.keys()
    assert direct <= listed.keys()
    assert not {"pytest", "mypy", "ruff", "penstock"} & listed.keys()
    assert listed["fastapi"]["purl"] == f"pkg:pypi/fastapi@{listed['fastapi']['version']}"
    assert bill["metadata"]["component"]["name"] == "penstock"


def test_the_audit_tells_what_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[Any] = []

    def osv(question: dict[str, Any]) -> dict[str, Any]:
        asked.append(question)
        return {"results": [{"vulns": [{"id": "GHSA-1"}]} if q["package"]["name"] == "fastapi" else {} for q in question["queries"]]}

    assert AUDIT.main([], osv) == AUDIT.EXIT_VULNERABLE
    assert f"fastapi=={PINNED['fastapi']}: GHSA-1\n" in capsys.readouterr().out
    assert {canonicalize_name(q["package"]["name"]): q["version"] for q in asked[0]["queries"]} == PINNED
    assert AUDIT.main([], lambda question: {"results": [{} for _ in question["queries"]]}) == 0


def test_without_a_network_the_audit_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    def nobody(_question: dict[str, Any]) -> dict[str, Any]:
        raise httpx.ConnectError("no route")

    assert AUDIT.main([], nobody) == 0
    assert "not audited" in capsys.readouterr().err
    assert AUDIT.main(["--strict"], nobody) == AUDIT.EXIT_UNKNOWN
    assert AUDIT.main(["--strict"], lambda _: {"results": []}) == AUDIT.EXIT_UNKNOWN


def test_every_pinned_package_has_the_digests_of_its_files_and_no_address() -> None:
    text = (ROOT / "constraints-hashes.txt").read_text(encoding="utf-8")
    assert HASHES.pinned(text) == PINNED
    assert "://" not in text
    packages = text.removeprefix(HASHES.HEAD).replace(HASHES.MORE, "").replace(" \\\n", "").splitlines()
    assert all(re.fullmatch(r"\S+==\S+(    --hash=sha256:[0-9a-f]{64})+", line) for line in packages)


def test_set_up_for_the_demo_installs_all_that_runs_and_no_tool() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    runs, more = (HASHES.pinned(part).keys() for part in text.split(HASHES.MORE))
    digests = (ROOT / "constraints-hashes.txt").read_text(encoding="utf-8")
    assert [HASHES.pinned(part).keys() for part in digests.split(HASHES.MORE)] == [runs, more]
    needed = closure([*PROJECT["dependencies"], *EXTRAS["mysql"], *EXTRAS["postgres"]])
    assert needed <= runs
    assert runs - needed <= {"setuptools"}, "a tool, or a package that some Python needs and this one does not"
    assert {"pytest", "mypy", "mkdocs-material", "duckdb"} <= more


def closure(requirements: list[str]) -> set[str]:
    """Return the packages that requirements mean in this Python, and those that they need in turn."""
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(one) for one in requirements]
    while waiting:
        wanted = waiting.pop()
        if (one := (canonicalize_name(wanted.name), frozenset(wanted.extras))) in found:
            continue
        found.add(one)
        needed = [Requirement(text) for text in metadata.requires(wanted.name) or ()]
        waiting += [n for n in needed if n.marker is None or any(n.marker.evaluate({"extra": e}) for e in ("", *wanted.extras))]
    return {name for name, _ in found}


def test_whatever_the_source_imports_is_declared() -> None:
    packages = metadata.packages_distributions()
    declared = {canonicalize_name(Requirement(one).name) for one in REQUIREMENTS}
    assert {
        f"{file.relative_to(ROOT)}: {name}"
        for file in (ROOT / "src" / "penstock").rglob("*.py")
        for name in IMPORT.findall(file.read_text(encoding="utf-8"))
        if name not in {*sys.stdlib_module_names, "penstock"}
        and not declared & {canonicalize_name(one) for one in packages.get(name, [name])}
    } == set()


def test_digests_are_those_of_files_that_set_up_may_meet() -> None:
    files = {
        "My_Thing-1.2.tar.gz": True,
        "my_thing-1.2-py3-none-any.whl": True,
        "my_thing-1.2-cp39-abi3-manylinux_2_28_x86_64.whl": True,
        "my_thing-1.2-cp313-cp313-manylinux2014_aarch64.manylinux_2_17_aarch64.whl": True,
        "my_thing-1.2-py313-none-any.whl": True,
        "my_thing-1.2-py310-none-any.whl": False,
        "my_thing-1.2-cp310-cp310-manylinux_2_28_x86_64.whl": False,
        "my_thing-1.2-cp313-cp313-win_amd64.whl": False,
        "my_thing-1.2.1-py3-none-any.whl": False,
        "my_thing-more-1.2.tar.gz": False,
        "my_thing-1.2.exe": False,
    }
    digest = {file: f"{number:064x}" for number, file in enumerate(files)}
    page = "".join(f'<a href="https://x/{file}#sha256={digest[file]}" data-yanked>{file}</a><br/>\n' for file in files)
    assert HASHES.digests(page, "my.thing", "1.2") == sorted(digest[file] for file, meant in files.items() if meant)
