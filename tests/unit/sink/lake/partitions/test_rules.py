"""The setting that says how tables are partitioned."""

import pytest

from penstock.model.errors import PenstockError
from penstock.sink.catalog import settings_of
from penstock.sink.lake.partitions.rules import Rule, Term, Transform, read_rules, terms_for


def test_rules_are_read() -> None:
    rules = read_rules(" shop.orders: day(created at) , region;shop.*:bucket( 16, id ); year(made) ")
    assert rules == (
        Rule("shop.orders", (Term(Transform.DAY, "created at"), Term(Transform.IDENTITY, "region"))),
        Rule("shop.*", (Term(Transform.BUCKET, "id", 16),)),
        Rule("*.*", (Term(Transform.YEAR, "made"),)),
    )
    assert read_rules("") == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("orders: region", "no pattern of tables"),
        ("shop.orders:", "neither a column nor"),
        ("shop.orders: week(x)", "none of year"),
        ("shop.orders: day(x", "neither a column nor"),
        ("shop.orders: day(x))", "neither a column nor"),
        ("shop.orders: bucket(x)", "between 1 and"),
        ("shop.orders: bucket(0, x)", "between 1 and"),
        ("shop.orders: bucket(99999, x)", "between 1 and"),
        ("shop.orders: day(4, x)", "between 1 and"),
        ("shop.orders: region, Region", "twice"),
        ("!shop.orders: region", "no pattern of tables"),
    ],
)
def test_what_makes_no_sense_is_said(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_rules(text)
    with pytest.raises(PenstockError, match=f"partition-by.*{said}"):
        settings_of("delta+file:///x", {"partition-by": text})


def test_the_first_rule_counts_whose_columns_a_table_has() -> None:
    rules = read_rules("shop.orders: region; shop.orders: area; shop.*: day(created)")
    region, area, created = (Term(Transform.IDENTITY, "region"),), (Term(Transform.IDENTITY, "area"),), (Term(Transform.DAY, "created"),)
    assert terms_for(rules, "shop", "orders", ["id", "Region", "area"]) == region
    assert terms_for(rules, "SHOP", "Orders", ["id", "area", "created"]) == area
    assert terms_for(rules, "shop", "orders", ["id", "created"]) == created
    assert terms_for(rules, "shop", "items", ["id", "created"]) == created
    assert terms_for(rules, "shop", "items", ["id"]) == ()
    assert terms_for(rules, "other", "orders", ["id"]) == ()
    with pytest.raises(PenstockError, match=r"SINK_DDL_REFUSED.*shop.orders has no column 'region'"):
        terms_for(rules, "shop", "orders", ["id"])
