"""audit.py: asks osv.dev whether the packages of constraints.txt have known vulnerabilities.

Exits 1 where one has. Where nobody answers it says so and exits 0, so that a machine without a network can go on; with ``--strict`` it
exits 2 then. Nothing but names and versions leaves the machine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[1]
URL = "https://api.osv.dev/v1/querybatch"
TIMEOUT_S = 20.0
EXIT_VULNERABLE, EXIT_UNKNOWN = 1, 2
Ask = Callable[[dict[str, Any]], dict[str, Any]]


def pinned(text: str) -> list[tuple[str, str]]:
    """Return names and versions of a constraints file."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [(name.strip(), version.strip()) for name, equals, version in (line.partition("==") for line in lines) if equals]


def vulnerabilities(packages: Sequence[tuple[str, str]], ask: Ask) -> dict[str, list[str]]:
    """Return the ids of what is known about each package that has anything."""
    queries = [{"package": {"name": name, "ecosystem": "PyPI"}, "version": version} for name, version in packages]
    results = ask({"queries": queries})["results"]
    if len(results) != len(packages):
        raise ValueError(f"{len(results)} answers to {len(packages)} questions")
    named = zip(packages, results, strict=True)
    return {f"{name}=={version}": [v["id"] for v in result["vulns"]] for (name, version), result in named if result.get("vulns")}


def ask_osv(question: dict[str, Any]) -> dict[str, Any]:
    """Send a question to osv.dev, or to what ``PENSTOCK_OSV_URL`` names."""
    answer = httpx.post(os.environ.get("PENSTOCK_OSV_URL", URL), json=question, timeout=TIMEOUT_S)
    answer.raise_for_status()
    told: dict[str, Any] = answer.json()
    return told


def main(argv: Sequence[str], ask: Ask = ask_osv) -> int:
    """Print what is known; return the exit code."""
    packages = pinned((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    try:
        found = vulnerabilities(packages, ask)
    except (httpx.HTTPError, ValueError, KeyError) as error:
        print(f"not audited: osv.dev did not answer ({type(error).__name__})", file=sys.stderr)
        return EXIT_UNKNOWN if "--strict" in argv else 0
    for package, ids in found.items():
        print(f"{package}: {', '.join(ids)}")
    print(f"{len(packages)} packages, {len(found)} with known vulnerabilities")
    return EXIT_VULNERABLE if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
