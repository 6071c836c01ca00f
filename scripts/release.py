"""release.py: checks that HEAD may become a release, builds it and signs it off. Nothing is pushed and no tag is made.

``problems`` asks what needs no build: a clean tree, a semantic version that the changelog has on top and no tag has yet, generated pages
and digests that are current. Then the wheel is built twice, tried outside the clone, and ``dist/`` gets the bill of materials, the sign-off
and SHA256SUMS. The sign-off says which commit it is and what was checked, so that the signature under SHA256SUMS covers that too.
With ``--check`` only the questions are asked and nothing is written. The exit code is 1 where something forbids a release.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parents[1]
SEMANTIC = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z.-]+)?")
"""https://semver.org, its grammar."""
CURRENT = ("hashes.py", "tests_doc.py", "errors_doc.py", "reference_doc.py")
"""Scripts whose ``--check`` says whether what they generate is current."""
REMOTE_S = 30.0
"""How long the tags of ``origin`` may take."""
_HEADING = re.compile(r"^## \[?([^\]\s]+)\]?(.*)$", re.MULTILINE)
_WHEEL = re.compile(r"penstock-(\d[^-\s]*)-py3")


def version_of(text: str) -> str:
    """Return the version that the package names in its ``__init__.py``."""
    found = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    return found[1] if found else ""


def version_problems(version: str, changelog: str, tags: Sequence[str]) -> list[str]:
    """Return what forbids a version: its form, the changelog, a tag."""
    found = [] if SEMANTIC.fullmatch(version) else [f"{version!r} is not a semantic version"]
    if not found and not _is_of_python(version):
        found.append(f"pip does not understand {version!r}: say 1.2.0-alpha.1, -beta.1 or -rc.1")
    if f"v{version}" in tags:
        found.append(f"the tag v{version} exists: raise __version__")
    return found + _changelog_problems(version, changelog)


def _changelog_problems(version: str, changelog: str) -> list[str]:
    headings = list(_HEADING.finditer(changelog))
    sections = [
        (one[1], one[2], changelog[one.end() : after.start() if after else None].strip())
        for one, after in zip(headings, [*headings[1:], None], strict=False)
    ]
    waiting = next((text for name, _, text in sections if name.lower() == "unreleased"), "")
    newest = next(((name, rest, text) for name, rest, text in sections if name[0].isdigit()), None)
    if newest is None or newest[0] != version:
        return [
            f"the newest version in CHANGELOG.md is {newest[0] if newest else 'none'}, not {version}: add `## [{version}] - YYYY-MM-DD`"
            + (" below `## [Unreleased]`, above its entries" if waiting else "")
        ]
    found = [] if _is_dated(newest[1]) else [f"CHANGELOG.md has no date for {version}: write `## [{version}] - YYYY-MM-DD`"]
    found += [] if newest[2] else [f"CHANGELOG.md says nothing of {version}"]
    return found + ([f"CHANGELOG.md has entries under Unreleased that {version} would ship untold"] if waiting else [])


def _is_dated(rest: str) -> bool:
    try:
        date.fromisoformat(rest.removeprefix(" - "))
    except ValueError:
        return False
    return re.fullmatch(r" - \d{4}-\d{2}-\d{2}", rest) is not None


def _is_of_python(version: str) -> bool:
    try:
        Version(version)
    except InvalidVersion:
        return False
    return True


def page_problems(version: str, pages: Sequence[Path]) -> list[str]:
    """Return the pages that tell people to install the wheel of another version."""
    wheel = str(Version(version)) if _is_of_python(version) else version
    named = [(page.name, set(_WHEEL.findall(page.read_text(encoding="utf-8"))) - {wheel}) for page in pages]
    return [f"{page} names the wheel of {', '.join(sorted(others))}, not {wheel}" for page, others in named if others]


def problems(root: Path = ROOT) -> list[str]:
    """Return what forbids a release of HEAD, as far as it can be asked without a build."""
    version = version_of((root / "src" / "penstock" / "__init__.py").read_text(encoding="utf-8"))
    found = version_problems(version, (root / "CHANGELOG.md").read_text(encoding="utf-8"), tags(root))
    found += page_problems(version, sorted((root / "docs").rglob("*.md")))
    for name in CURRENT:
        asked = subprocess.run(_script(name, "--check", root=root), check=False, cwd=root, capture_output=True, text=True)
        found += [f"{name}: {(asked.stdout + asked.stderr).strip()}"] if asked.returncode else []
    changed = _run("git", "status", "--porcelain", root=root).splitlines()
    return found + ([f"the tree is not clean: {', '.join(line[3:] for line in changed)}"] if changed else [])


def tags(root: Path) -> list[str]:
    """Return the tags of the clone, and those of ``origin`` where it answers: another clone may have released."""
    known = _run("git", "tag", "--list", root=root).split()
    quiet = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_SSH_COMMAND": "ssh -o BatchMode=yes"}
    try:
        asked = subprocess.run(
            ["git", "ls-remote", "--tags", "--refs", "origin"],
            cwd=root,
            env=quiet,
            capture_output=True,
            text=True,
            check=False,
            timeout=REMOTE_S,
        )
    except subprocess.TimeoutExpired:
        return known
    return known + [line.rpartition("refs/tags/")[2] for line in asked.stdout.splitlines()]


def sums(folder: Path) -> str:
    """Write SHA256SUMS over a folder's files, as ``sha256sum -c`` reads it; return its text."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and file.name != "SHA256SUMS")
    text = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    (folder / "SHA256SUMS").write_text(text, encoding="utf-8")
    return text


def sign_off(version: str, commit: str, java: str) -> str:
    """Return the text of the sign-off: what was released, from what, and what was checked here."""
    return (
        f"penstock {version}\n"
        f"commit {commit}\n"
        f"checked on Python {platform.python_version()}, {java}:\n"
        "- the tree was clean, the changelog has the version, no tag had it, generated pages and digests were current\n"
        "- style, types and layers (make lint)\n"
        "- the wheel holds every file that ships and nothing else, and a second build gave the same bytes\n"
        "- the wheel was installed outside the clone with the pinned packages, and its demo verified every row\n"
        "not checked here: the tests (make test, or CI on this commit)\n"
    )


def build(version: str) -> None:
    """Build and try the wheel; leave it in ``dist/`` with the bill of materials, the sign-off and the sums."""
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir()
    subprocess.run([ROOT / "scripts" / "wheel_test.sh"], check=True, cwd=ROOT)
    subprocess.run(_script("sbom.py"), check=True, cwd=ROOT)
    bill = json.loads((ROOT / "build" / "sbom.cdx.json").read_text(encoding="utf-8"))
    bill["metadata"]["component"]["version"] = version
    (dist / f"penstock-{version}.cdx.json").write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")
    java = subprocess.run([Path(os.environ["JAVA_HOME"]) / "bin" / "java", "-version"], check=True, capture_output=True, text=True).stderr
    text = sign_off(version, _run("git", "rev-parse", "HEAD").strip(), java.splitlines()[0])
    (dist / f"penstock-{version}.signoff.txt").write_text(text, encoding="utf-8")
    print(text + sums(dist), end="")


def main(argv: Sequence[str]) -> int:
    """Check, build, sign off; return the exit code."""
    if unknown := set(argv) - {"--check"}:
        print(f"no release: what is {' '.join(sorted(unknown))}? Say: make release, or: make release ARGS=--check", file=sys.stderr)
        return 1
    if found := problems():
        print("no release:\n" + "\n".join(f"  {one}" for one in found), file=sys.stderr)
        return 1
    version = version_of((ROOT / "src" / "penstock" / "__init__.py").read_text(encoding="utf-8"))
    if "--check" in argv:
        print(f"HEAD may become penstock {version}; nothing was built")
        return 0
    try:
        build(version)
    except subprocess.CalledProcessError as error:
        print(f"no release: {Path(str(error.cmd[0])).name} failed with exit code {error.returncode}; see above", file=sys.stderr)
        return 1
    print(f"penstock {version} may be released. To release it, once the tests of this commit have passed:")
    print(f"  git tag -s v{version} -m 'penstock {version}' && git push origin v{version}")
    print("  gpg --armor --detach-sign dist/SHA256SUMS, then publish the files of dist/")
    return 0


def _script(name: str, *args: str, root: Path = ROOT) -> list[str]:
    return [sys.executable, str(root / "scripts" / name), *args]


def _run(*command: str, root: Path = ROOT) -> str:
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
