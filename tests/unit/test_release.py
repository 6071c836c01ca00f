"""What may be released: a version's form, its entry in the changelog, its tag; the sums of the files."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

import penstock

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("release", ROOT / "scripts" / "release.py")
assert SPEC is not None
assert SPEC.loader is not None
RELEASE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(RELEASE)
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2026-11-20\n\n### Added\n\n- x\n\n## [1.1.0] - 2026-11-01\n"


def test_the_version_of_the_package_is_read_and_semantic() -> None:
    text = (ROOT / "src" / "penstock" / "__init__.py").read_text(encoding="utf-8")
    assert RELEASE.version_of(text) == penstock.__version__
    assert RELEASE.SEMANTIC.fullmatch(penstock.__version__)


def test_the_scripts_that_are_asked_exist() -> None:
    assert [name for name in RELEASE.CURRENT if "--check" not in (ROOT / "scripts" / name).read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("version", ["1.2", "01.2.0", "v1.2.0", "1.2.0.dev1", "1.2.0-", ""])
def test_a_version_of_another_form_is_refused(version: str) -> None:
    assert f"{version!r} is not a semantic version" in RELEASE.version_problems(version, CHANGELOG, [])


@pytest.mark.parametrize("version", ["1.2.0", "1.2.0-rc.1", "1.2.0-alpha.2", "0.1.0"])
def test_a_semantic_version_is_one_of_python_too(version: str) -> None:
    assert RELEASE.version_problems(version, CHANGELOG.replace("1.2.0", version), []) == []
    assert RELEASE.version_problems("1.2.0-foo.1", CHANGELOG.replace("1.2.0", "1.2.0-foo.1"), []) == [
        "pip does not understand '1.2.0-foo.1': say 1.2.0-alpha.1, -beta.1 or -rc.1"
    ]


@pytest.mark.parametrize(
    ("version", "old", "new", "problem"),
    [
        ("1.2.0", "x", "x", None),
        ("1.2.0", " - 2026-11-20", "", "CHANGELOG.md has no date for 1.2.0: write `## [1.2.0] - YYYY-MM-DD`"),
        ("1.2.0", "2026-11-20", "2026-13-20", "CHANGELOG.md has no date for 1.2.0: write `## [1.2.0] - YYYY-MM-DD`"),
        ("1.2.0", "### Added\n\n- x\n", "", "CHANGELOG.md says nothing of 1.2.0"),
        ("1.2.0", "[Unreleased]\n", "[Unreleased]\n\n- y\n", "CHANGELOG.md has entries under Unreleased that 1.2.0 would ship untold"),
        ("1.3.0-rc.1", "x", "x", "the newest version in CHANGELOG.md is 1.2.0, not 1.3.0-rc.1: add `## [1.3.0-rc.1] - YYYY-MM-DD`"),
        ("1.1.0", "x", "x", "the newest version in CHANGELOG.md is 1.2.0, not 1.1.0: add `## [1.1.0] - YYYY-MM-DD`"),
    ],
)
def test_the_changelog_has_the_version_on_top_with_a_date_and_all_its_entries(
    version: str, old: str, new: str, problem: str | None
) -> None:
    assert RELEASE.version_problems(version, CHANGELOG.replace(old, new), []) == ([problem] if problem else [])


def test_a_changelog_without_a_version_is_told_where_the_heading_goes() -> None:
    (found,) = RELEASE.version_problems("1.0.0", "# Changelog\n\n## [Unreleased]\n\n- x\n", [])
    assert found == (
        "the newest version in CHANGELOG.md is none, not 1.0.0: add `## [1.0.0] - YYYY-MM-DD` below `## [Unreleased]`, above its entries"
    )


def test_pages_name_the_wheel_of_the_version(tmp_path: Path) -> None:
    page = tmp_path / "install.md"
    page.write_text(
        "pip install penstock-1.2.0rc1-py3-none-any.whl\npip install 'penstock-1.1.0-py3-none-any.whl[mysql]'\n", encoding="utf-8"
    )
    assert RELEASE.page_problems("1.2.0-rc.1", [page]) == ["install.md names the wheel of 1.1.0, not 1.2.0rc1"]
    assert RELEASE.page_problems(penstock.__version__, sorted((ROOT / "docs").rglob("*.md"))) == []


def git(folder: Path, *args: str) -> None:
    settings = ("user.name=x", "user.email=x@example.org", "commit.gpgsign=false", "tag.gpgsign=false")
    command = ["git", *(part for one in settings for part in ("-c", one)), *args]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a clone whose version may be released; its generated pages are always current."""
    origin = tmp_path / "origin"
    for name, text in {
        "CHANGELOG.md": CHANGELOG,
        "src/penstock/__init__.py": '__version__ = "1.2.0"\n',
        "docs/install.md": "penstock-1.2.0-py3-none-any.whl\n",
        **{f"scripts/{name}": "" for name in RELEASE.CURRENT},
    }.items():
        (origin / name).parent.mkdir(parents=True, exist_ok=True)
        (origin / name).write_text(text, encoding="utf-8")
    git(tmp_path, "init", "-q", str(origin))
    git(origin, "add", "-A")
    git(origin, "commit", "-q", "-m", "all")
    git(tmp_path, "clone", "-q", str(origin), "clone")
    return tmp_path / "clone"


def test_a_clean_clone_may_be_released_and_asking_changes_nothing(clone: Path) -> None:
    assert RELEASE.problems(clone) == []
    assert sorted(file.name for file in clone.iterdir()) == [".git", "CHANGELOG.md", "docs", "scripts", "src"]


def test_a_tag_of_the_clone_or_of_its_origin_forbids_the_version(clone: Path) -> None:
    git(clone.parent / "origin", "tag", "-a", "v1.2.0", "-m", "released from another clone")
    assert RELEASE.problems(clone) == ["the tag v1.2.0 exists: raise __version__"]
    git(clone, "remote", "remove", "origin")
    assert RELEASE.problems(clone) == []
    git(clone, "tag", "v1.2.0")
    assert RELEASE.problems(clone) == ["the tag v1.2.0 exists: raise __version__"]


def test_everything_that_forbids_a_release_is_told_at_once(clone: Path) -> None:
    (clone / "new.py").write_text("", encoding="utf-8")
    (clone / "CHANGELOG.md").write_text("# Changelog\n", encoding="utf-8")
    (clone / "scripts" / "tests_doc.py").write_text("import sys; sys.exit('tests.md is not current')", encoding="utf-8")
    assert RELEASE.problems(clone) == [
        "the newest version in CHANGELOG.md is none, not 1.2.0: add `## [1.2.0] - YYYY-MM-DD`",
        "tests_doc.py: tests.md is not current",
        "the tree is not clean: CHANGELOG.md, scripts/tests_doc.py, new.py",
    ]


def test_an_option_that_is_not_known_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert RELEASE.main(["--dry"]) == 1
    assert "what is --dry?" in capsys.readouterr().err


def test_the_sign_off_says_what_was_checked_and_what_was_not() -> None:
    text = RELEASE.sign_off("1.2.0", "0" * 40, 'openjdk version "17.0.1"')
    assert text.startswith(f"penstock 1.2.0\ncommit {'0' * 40}\n")
    assert 'openjdk version "17.0.1"' in text
    assert text.splitlines()[-1] == "not checked here: the tests (make test, or CI on this commit)"


def test_the_sums_are_those_that_sha256sum_checks(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"one")
    (tmp_path / "b.json").write_bytes(b"two")
    RELEASE.sums(tmp_path)
    assert len(RELEASE.sums(tmp_path).splitlines()) == 2
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "a.whl").write_bytes(b"other")
    assert subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path, check=False, capture_output=True).returncode == 1
