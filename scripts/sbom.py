"""sbom.py: writes build/sbom.cdx.json, the packages that an installation of Penstock holds, as CycloneDX 1.5.

What is listed is what Penstock and its extras need, and what those need, as far as it is installed here; tools of tests are left out. The
same installation gives the same file.
"""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("mysql", "postgres", "duckdb", "kafka", "delta", "iceberg")


def installed(name: str, extras: tuple[str, ...] = EXTRAS) -> dict[str, metadata.Distribution]:
    """Return a package and everything that it needs, by canonical name."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [(name, extras)]
    while waiting:
        wanted, wanted_extras = waiting.pop()
        key = canonicalize_name(wanted)
        try:
            one = metadata.distribution(wanted)
        except metadata.PackageNotFoundError:
            continue
        if key in found and not wanted_extras:
            continue
        found[key] = one
        for text in one.requires or ():
            needed = Requirement(text)
            meant = needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *wanted_extras))
            if meant and canonicalize_name(needed.name) not in found:
                waiting.append((needed.name, tuple(needed.extras)))
    return dict(sorted(found.items()))


def document(packages: dict[str, metadata.Distribution], root: str) -> dict[str, Any]:
    """Return the bill of materials of packages; ``root`` is the one that they are for."""
    components = [component(name, one) for name, one in packages.items() if name != root]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**component(root, packages[root]), "type": "application"}},
        "components": components,
    }


def component(name: str, one: metadata.Distribution) -> dict[str, Any]:
    """Return one package as CycloneDX knows it."""
    licence = one.metadata.get("License-Expression")
    described = {"type": "library", "name": name, "version": one.version, "purl": f"pkg:pypi/{name}@{one.version}", "bom-ref": name}
    return described | ({"licenses": [{"expression": licence}]} if licence else {})


def main() -> int:
    """Write the file; return the exit code."""
    packages = installed("penstock")
    file = ROOT / "build" / "sbom.cdx.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(document(packages, "penstock"), indent=2) + "\n", encoding="utf-8")
    print(f"{file.relative_to(ROOT)}: {len(packages) - 1} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
