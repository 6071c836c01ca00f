"""The address of an event store's Flight service, as a file beside the store: where it listens, and the token that callers pass.

Whoever may read the file may read the store. It is written when the service starts, readable by its owner alone, and removed when it
stops; a new start makes a new token. So the token needs to stand in no command line, configuration, answer or log. Runs in the server,
which writes it, and wherever a table is read, if the file can be reached there.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.files.private_files import open_private
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError

NAME = "flight.json"


class FlightAddress(msgspec.Struct, frozen=True):
    """Where an event store is read. Holds a secret."""

    location: str
    token: str

    def __repr__(self) -> str:
        return f"FlightAddress({self.location!r})"


def write_address(store_dir: Path, address: FlightAddress) -> Path:
    """Write the address of the service that serves a store; only this user can read it."""
    file = store_dir / NAME
    partial = file.with_suffix(".new")
    partial.unlink(missing_ok=True)
    with open(partial, "xb", opener=open_private) as sink:
        sink.write(msgspec.json.encode(address))
    partial.replace(file)
    return file


def read_address(data_dir: Path) -> FlightAddress:
    """Return the address of the server that runs on a data directory; the store's own directory may be given as well."""
    for directory in (data_dir / "store", data_dir):
        try:
            return decoded((directory / NAME).read_bytes(), FlightAddress)
        except FileNotFoundError:
            continue
        except (OSError, msgspec.DecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it does not parse"
            raise PenstockError("CONFIG_INVALID", f"{directory / NAME}: {reason}", "Read it as the user that runs the server.") from None
    raise PenstockError("STORE_UNREACHABLE", f"no server runs on {data_dir}", "Start it with `penstock server`, or name its --data-dir.")
