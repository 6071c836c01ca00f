from pathlib import Path

import unused_names


def test_no_public_name_is_unused_and_no_exception_is_stale() -> None:
    assert {one.key for one in unused_names.unused()} == set(unused_names.ALLOWED)


def test_what_counts_as_used(tmp_path: Path) -> None:
    """Names by import or in their module, members by any access; neither by themselves, nor by tests' twins."""
    package = tmp_path / "src" / "penstock"
    package.mkdir(parents=True)
    (tmp_path / "testing").mkdir()
    (package / "one.py").write_text(
        """
def used(): ...
def here(): ...
def alone(): return alone()
def twin(): ...
LIMIT = here()
class Box:
    size: int
    weight: int
    def put(self): return self.size
    def hand_on(self): return self.inner.hand_on()
    def _private(self): ...
    def by_name(self): ...
"""
    )
    (package / "two.py").write_text("from penstock.one import Box, used\nBox().put(); used(); getattr(Box(), 'by_name')")
    (tmp_path / "testing" / "three.py").write_text("from penstock.one import twin\ntwin()")
    assert [one.name for one in unused_names.unused(tmp_path)] == ["alone", "twin", "LIMIT", "weight", "hand_on"]
