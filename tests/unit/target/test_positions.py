"""Positions of dispatchers in a target."""

from penstock.target.positions import newest_directory, position_key, schema_key, shortened

POSITION = {
    schema_key(5): 5,
    schema_key(7): 5,
    schema_key(9): 9,
    position_key(5, "2024-01-31", ""): 4,
    position_key(9, "2024-01-02", ""): 2,
    position_key(9, "2024-01-02", "7-1"): 3,
}


def test_the_newest_directory_is_the_one_of_the_newest_version() -> None:
    assert newest_directory(POSITION) == ((9, "2024-01-02"), 2)
    assert newest_directory({schema_key(5): 5}) is None
    assert newest_directory({position_key(5, "2024-01-31", ""): 4, position_key(5, "2024-02-01", ""): 1}) == ((5, "2024-02-01"), 1)


def test_what_counts_after_a_file_is_its_directory_under_every_naming_and_the_newest_version_that_writes_there() -> None:
    assert shortened(POSITION, position_key(9, "2024-01-02", "")) == {
        schema_key(9): 9,
        position_key(9, "2024-01-02", ""): 2,
        position_key(9, "2024-01-02", "7-1"): 3,
    }
    assert shortened(POSITION, position_key(5, "2024-01-31", "")) == {schema_key(7): 5, position_key(5, "2024-01-31", ""): 4}
