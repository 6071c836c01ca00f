"""What holds for each verb of the command line, whoever adds one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from penstock.cli.main import EXIT_AGAIN, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OPERATOR, EXIT_SPARK_LOST, EXIT_UNREAD, cli, exit_code, run
from penstock.model.errors import CODES, PenstockError
from testing.servers.api_server import ApiServer

FOREGROUND = {"demo", "run", "server", "receive", "dataserver"}
"""They have no result."""
FILES = {"package", "completion"}
"""Their result is a file or a script."""


def verbs(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from verbs(inner, (*path, name))
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield path, command


ALL = list(verbs(cli))


def options(command: click.Command) -> dict[str, click.Option]:
    return {name: option for option in command.params if isinstance(option, click.Option) for name in option.opts}


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])
def test_each_has_help_and_an_output_for_scripts(path: tuple[str, ...], command: click.Command) -> None:
    assert command.help
    if path[0] in FOREGROUND | FILES and path != ("server", "drain"):
        return
    output = options(command)["--output"].type
    assert isinstance(output, click.Choice)
    assert list(output.choices) == ["table", "json", "yaml"]


def test_states_can_be_watched() -> None:
    watching = {" ".join(path) for path, command in ALL if "--watch" in options(command)}
    assert watching == {"feed list", "feed show", "feed table list", "status"}


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])
def test_wrong_usage_is_one_document_for_scripts(path: tuple[str, ...], command: click.Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*path, "--no-such-option", "--output", "json"]) == EXIT_OPERATOR
    out, err = capsys.readouterr()
    told = json.loads(err)["error"]
    assert (out, told["code"], told["exit_code"]) == ("", "USAGE", 2)
    assert "--no-such-option" in told["message"]


OF_A_SERVER = {
    ("feed", "create"): ["x", "--table", "a.b", "--sink", "file:///tmp/never", "--wait", "0"],
    ("sql",): ["-e", "SHOW CHANGEFEEDS", "--wait", "0"],
    ("feed", "alter"): ["x", "--table", "a.c"],
    ("feed", "clone"): ["x", "y", "--sink", "file:///tmp/never"],
    ("feed", "reset"): ["x", "--to", "now"],
    ("token", "create"): ["x"],
    ("subscribe",): ["x", "--table", "a.b", "--sink", "file:///tmp/never", "--grpc", "127.0.0.1:1"],
    ("verify",): ["x"],
    ("logs",): [],
}
CALLING = [(path, command) for path, command in ALL if "--server" in options(command)]


@pytest.mark.parametrize("output", ["json", "yaml"])
@pytest.mark.parametrize(("path", "command"), CALLING, ids=[" ".join(path) for path, _ in CALLING])
def test_a_server_that_does_not_answer_is_75_and_one_document(
    path: tuple[str, ...], command: click.Command, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [p for p in command.params if isinstance(p, click.Argument) and p.required]
    arguments = OF_A_SERVER.get(path, ["x"] * len(names))
    assert run([*path, *arguments, "--server", "http://127.0.0.1:1", "--output", output]) == EXIT_AGAIN
    out, err = capsys.readouterr()
    told = (json.loads(err) if output == "json" else yaml.safe_load(err))["error"]
    assert (out, told["code"], told["kind"], told["exit_code"]) == ("", "SERVER_UNREACHABLE", "TRANSIENT", 75)
    assert told["hint"]


def test_every_code_of_an_error_ends_as_the_page_says() -> None:
    by_kind = {"CORRUPT": EXIT_FAILED, "BUG": EXIT_FAILED, "TRANSIENT": EXIT_AGAIN}
    for code, entry in CODES.items():
        wanted = EXIT_SPARK_LOST if code == "SPARK_LOST" else by_kind.get(entry.kind.value, EXIT_OPERATOR)
        assert exit_code(PenstockError(code, "x")) == wanted, code
    page = (Path(__file__).parents[3] / "docs" / "exit-codes.md").read_text()
    listed = {int(line.split("|")[1]) for line in page.splitlines() if line.startswith("| ") and line.split("|")[1].strip().isdigit()}
    assert listed == {0, 3, EXIT_FAILED, EXIT_OPERATOR, EXIT_SPARK_LOST, EXIT_AGAIN, EXIT_INTERRUPTED, EXIT_UNREAD}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path, "shop.orders", "shop.items") as running:
        yield running


def test_yaml_and_json_hold_the_same(server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["--server", server.url]
    assert run(["feed", "create", "orders", "--table", "shop.*", "--sink", "s3://every-verb/orders", *at, "--output", "yaml"]) == 0
    made = yaml.safe_load(capsys.readouterr().out)
    assert (made["name"], [t["name"] for t in made["tables"]]) == ("orders", ["shop.items", "shop.orders"])
    assert run(["token", "create", "dashboard", *at]) == 0
    capsys.readouterr()
    assert run(["token", "list", "--output", "json", *at]) == 0
    told = json.loads(capsys.readouterr().out)
    assert run(["token", "list", "--output=yaml", *at]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == told != []
    assert run(["feed", "show", "none", "--output", "yaml", *at]) == 2
    out, err = capsys.readouterr()
    assert (out, yaml.safe_load(err)["error"]["code"]) == ("", "FEED_UNKNOWN")
