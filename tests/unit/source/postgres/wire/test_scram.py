import base64
import hashlib
import hmac

import pytest

from penstock.model.errors import PenstockError
from penstock.source.postgres.wire.scram import ScramClient, md5_response


def test_scram_by_the_example_of_rfc_7677():
    client = ScramClient("pencil", "rOprNGfwEbeRWgbNEkqO")
    assert client.first() == b"n,,n=,r=rOprNGfwEbeRWgbNEkqO"
    # The RFC's exchange names a user, which PostgreSQL leaves empty; the salt and the nonce are the RFC's.
    first = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = client.final(first)
    bare, _, proof = final.partition(b",p=")
    assert bare == b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    # What a server that keeps the stored key computes.
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096)
    signed = b"n=,r=rOprNGfwEbeRWgbNEkqO," + first + b"," + bare
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), hmac.digest(stored, signed, "sha256"), strict=True))
    assert hashlib.sha256(key).digest() == stored
    client.verify(b"v=" + base64.b64encode(hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), signed, "sha256")))
    with pytest.raises(PenstockError, match="could not prove"):
        client.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("challenge", [b"r=other,s=QQ==,i=1", b"r=abc,s=QQ==,i=1", b"r=abcd,s=QQ==,i=x", b"r=abcd,s=QQ==,i=999999999", b""])
def test_a_challenge_that_is_none_is_refused(challenge):
    with pytest.raises(PenstockError, match="UPSTREAM_REFUSED"):
        ScramClient("pw", "abc").final(challenge)


def test_md5_answers_as_the_server_expects():
    inner = hashlib.md5(b"secretme").hexdigest().encode()
    assert md5_response("me", "secret", b"salt") == "md5" + hashlib.md5(inner + b"salt").hexdigest()
