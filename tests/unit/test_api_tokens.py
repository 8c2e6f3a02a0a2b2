"""Tokens: whose signature counts, which claims, and what happens while the issuer changes its keys or is
away."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from datetime import timedelta

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from fastapi.testclient import TestClient
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from moto import mock_aws

from api.app import create_app
from api.auth import BadToken, Claims, Role
from api.fleet import Fleet
from api.keyset import AGAIN_S, FRESH_S, KeySet, jwks_at
from api.signing import KEY_FILE, LOCAL, OperatorAuth, Signer
from api.tokens import Tokens
from muster.clock import FakeClock
from muster.errors import Refused, TryLater
from muster.store import Store
from tests.api_stand import settings_with_queues, sqs_client


class Issuer:
    """Publishes the keys of some signers; can be away."""

    def __init__(self, *signers):
        self.signers, self.asked, self.away = list(signers), 0, False

    def read(self):
        self.asked += 1
        if self.away:
            raise OSError("no route to the issuer")
        return {"keys": [key for signer in self.signers for key in signer.jwks()["keys"]]}


@pytest.fixture
def clock():
    return FakeClock(time.time())


@pytest.fixture
def signer():
    return Signer.new()


@pytest.fixture
def issuer(signer):
    return Issuer(signer)


@pytest.fixture
def tokens(issuer, clock):
    return Tokens(KeySet(issuer.read, clock), LOCAL, clock)


def run(tokens, *given):
    """Judge the tokens, one after the other, in one event loop; principals and errors."""

    async def judge():
        found = []
        for token in given:
            try:
                found.append(await tokens.authenticate(token))
            except (BadToken, TryLater) as error:
                found.append(error)
            await settle(tokens)
        return found

    return asyncio.run(judge())


async def settle(tokens):
    """Let a reading that goes on beside the requests come to its end."""
    if (reading := tokens._keys._reading) is not None:
        await reading


def one(tokens, token):
    (found,) = run(tokens, token)
    return found


def test_a_good_token_names_its_bearer(tokens, signer):
    who = one(tokens, signer.token(Role.USER, "u1"))
    assert (who.subject, who.role, who.user_id) == ("u1", Role.USER, "u1")
    who = one(tokens, signer.token(Role.VIEWER, sub="wall"))
    assert (who.subject, who.role, who.user_id) == ("wall", Role.VIEWER, None)


@pytest.mark.parametrize(
    ("claims", "word"),
    [
        ({"exp": 1_000}, "expired"),
        ({"exp": None}, "not one for this API"),
        ({"exp": "soon"}, "not one for this API"),
        ({"iat": 9_999_999_999, "exp": 9_999_999_999}, "not one for this API"),
        ({"nbf": 9_999_999_999}, "not one for this API"),
        ({"iss": "somebody"}, "not one for this API"),
        ({"aud": "somebody"}, "not one for this API"),
        ({"aud": None}, "not one for this API"),
        ({"sub": None}, "not one for this API"),
        ({"sub": ""}, "subject"),
        ({"sub": "a\nb"}, "subject"),
        ({"sub": "x" * 129}, "subject"),
        ({"muster_role": None}, "muster_role"),
        ({"muster_role": "king"}, "muster_role"),
        ({"muster_role": {"operator": 1}}, "muster_role"),
        ({"muster_role": [["operator"]]}, "muster_role"),
        ({"muster_role": "user", "sub": "a b"}, "no user id"),
        ({"muster_role": "user", "sub": ".."}, "no user id"),
    ],
)
def test_a_claim_that_is_not_right_opens_nothing_and_says_which(tokens, signer, claims, word):
    refused = one(tokens, signer.token(Role.OPERATOR, **claims))
    assert isinstance(refused, BadToken)
    assert word in str(refused)


def test_of_many_groups_the_mightiest_role_counts_and_claims_have_the_names_of_the_deployment(issuer, signer):
    claims = Claims(LOCAL.issuer, LOCAL.audience, role="cognito:groups", user="custom:user")
    tokens = Tokens(KeySet(issuer.read), claims)
    mighty = signer.token(Role.USER, **{"cognito:groups": ["eu", "viewer", "operator", "user"]})
    plain = signer.token(Role.OPERATOR, **{"cognito:groups": ["user"], "custom:user": "u7", "sub": "a-uuid"})
    operator, user = run(tokens, mighty, plain)
    assert operator.role is Role.OPERATOR
    assert (user.role, user.user_id, user.subject) == (Role.USER, "u7", "a-uuid")


def unsigned(claims, header):
    parts = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims))
    return b".".join(parts).decode() + "."


def test_without_a_signature_or_with_a_shared_secret_it_is_nobodys(tokens, signer):
    good = signer.token(Role.OPERATOR)
    claims, kid = (
        jwt.decode(good, options={"verify_signature": False}),
        jwt.get_unverified_header(good)["kid"],
    )
    public = signer._key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    # The classic confusion: the public key, which everybody has, used as the secret of an HMAC. The library
    # would not sign so; a forger does not ask it.
    head = unsigned(claims, {"alg": "HS256", "kid": kid, "typ": "JWT"}).rstrip(".")

    for secret in (public, base64.urlsafe_b64decode(signer.jwks()["keys"][0]["x"] + "==")):
        mac = base64.urlsafe_b64encode(hmac.new(secret, head.encode(), hashlib.sha256).digest()).rstrip(b"=")
        assert isinstance(one(tokens, f"{head}.{mac.decode()}"), BadToken)
    for alg in ("none", "None", "NONE", "HS256", "EdDSA", "ES256", "RS256", "", None, 5):
        assert isinstance(one(tokens, unsigned(claims, {"alg": alg, "kid": kid})), BadToken)
    stranger = Signer.new().token(Role.OPERATOR)
    forged = f"{good.split('.')[0]}.{stranger.split('.')[1]}.{stranger.split('.')[2]}"
    assert isinstance(one(tokens, forged), BadToken)


@pytest.mark.parametrize(
    "token", ["", "x", "a.b.c", "a.b", "é.é.é", "." * 100, "x" * 9_000, "\udcff", "{}.{}.{}"]
)
def test_what_is_no_token_is_nobodys(tokens, token):
    assert isinstance(one(tokens, token), BadToken)


@pytest.mark.parametrize("kind", ["RS256", "ES256", "RS256 of 1024 bits"])
def test_issuers_with_other_keys(kind):
    if kind == "ES256":
        key = ec.generate_private_key(ec.SECP256R1())
        jwk = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        key = rsa.generate_private_key(65537, 1024 if "1024" in kind else 2048)
        jwk = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    now = int(time.time())
    claims = {"iss": LOCAL.issuer, "aud": [LOCAL.audience, "more"], "sub": "x", "iat": now, "exp": now + 60}
    token = jwt.encode({**claims, "muster_role": "viewer"}, key, kind.split()[0], {"kid": "k1"})
    published = {"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "s"}, {"kid": "?"}, 5, {**jwk, "kid": "k1"}]}
    found = one(Tokens(KeySet(lambda: published), LOCAL), token)
    if "1024" in kind:
        assert isinstance(found, BadToken)
    else:
        assert found.role is Role.VIEWER


def test_a_new_key_is_found_when_a_token_names_it_and_a_made_up_one_costs_the_issuer_little(
    tokens, issuer, signer, clock
):
    assert one(tokens, signer.token(Role.VIEWER)).role is Role.VIEWER
    fresh = Signer.new()
    issuer.signers.append(fresh)
    assert isinstance(one(tokens, fresh.token(Role.VIEWER)), BadToken)  # asked a moment ago
    clock.advance(AGAIN_S)
    assert one(tokens, fresh.token(Role.VIEWER)).role is Role.VIEWER
    asked = issuer.asked
    run(tokens, *(Signer.new().token(Role.OPERATOR) for _ in range(20)))
    assert issuer.asked == asked
    clock.advance(AGAIN_S)
    run(tokens, *(Signer.new().token(Role.OPERATOR) for _ in range(20)))
    assert issuer.asked == asked + 1


def test_a_key_that_was_removed_opens_nothing_once_the_keys_were_read_again(tokens, issuer, signer, clock):
    token = signer.token(Role.OPERATOR, ttl=timedelta(days=1))
    assert one(tokens, token).role is Role.OPERATOR
    issuer.signers[:] = [Signer.new()]
    clock.advance(FRESH_S - 1)
    assert one(tokens, token).role is Role.OPERATOR
    clock.advance(1)
    # The request that finds the keys too old goes on while they are read; the one after it sees them.
    assert isinstance(run(tokens, token, token)[1], BadToken)


def test_after_a_long_silence_the_keys_are_read_before_anybody_is_let_in(tokens, issuer, signer, clock):
    token = signer.token(Role.OPERATOR, ttl=timedelta(days=1))
    assert one(tokens, token).role is Role.OPERATOR
    issuer.signers[:] = [Signer.new()]
    clock.advance(2 * FRESH_S + 1)
    assert isinstance(one(tokens, token), BadToken)


def test_while_the_issuer_is_away_known_keys_work_and_unknown_ones_come_back_later(
    tokens, issuer, signer, clock
):
    assert one(tokens, signer.token(Role.VIEWER)).role is Role.VIEWER
    issuer.away = True
    clock.advance(10 * FRESH_S)
    known, unknown, again = run(
        tokens, signer.token(Role.VIEWER, ttl=timedelta(days=1)), Signer.new().token(Role.VIEWER), "x"
    )
    assert known.role is Role.VIEWER
    assert isinstance(unknown, TryLater)
    assert isinstance(again, BadToken)
    issuer.away = False
    clock.advance(AGAIN_S)
    assert one(tokens, signer.token(Role.VIEWER, ttl=timedelta(days=1))).role is Role.VIEWER


def test_a_verified_token_is_remembered_and_not_longer_than_it_is_good(tokens, signer, clock, monkeypatch):
    verified = []
    real = jwt.decode
    monkeypatch.setattr(jwt, "decode", lambda *words, **named: verified.append(1) or real(*words, **named))
    token = signer.token(Role.VIEWER, ttl=timedelta(minutes=1))
    run(tokens, token, token, token)
    assert len(verified) == 1
    clock.advance(71)  # the leeway is ten seconds
    monkeypatch.setattr(time, "time", clock.now)
    one(tokens, token)
    assert len(verified) == 2


def test_an_issuer_that_was_never_reached_is_503_with_a_time_to_come_back(valkey):
    with mock_aws():
        sqs = sqs_client()
        fleet = Fleet(Store(valkey), sqs, settings_with_queues(sqs))
        tokens = Tokens(KeySet(jwks_at("http://127.0.0.1:1/keys")), LOCAL)
        with TestClient(create_app(fleet, fleet.together, tokens)) as api:
            token = Signer.new().token(Role.VIEWER)
            answer = api.get("/v1/me", headers={"Authorization": f"Bearer {token}"})
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) >= 1
            assert token not in answer.text
            assert api.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"keys": []}', '{"keys": 5}', '{"keys": [{"kty": "oct"}]}']
)
def test_a_key_set_that_is_none_is_as_if_away(tmp_path, content):
    (tmp_path / "jwks.json").write_text(content)
    tokens = Tokens(KeySet(jwks_at(str(tmp_path / "jwks.json"))), LOCAL)
    assert isinstance(one(tokens, Signer.new().token(Role.VIEWER)), TryLater)


@pytest.mark.parametrize(
    "place", ["", "http://issuer.example/keys", "ftp://issuer.example/keys", "file:///etc/x"]
)
def test_keys_come_by_https_or_from_a_file(place):
    with pytest.raises(Refused, match="MUSTER_AUTH_JWKS"):
        jwks_at(place)


def test_a_folders_key_is_for_its_owner_and_stays(tmp_path):
    made = Signer.make(tmp_path)
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o777 == 0o600
    again = Signer.make(tmp_path)
    assert again.jwks() == made.jwks()
    tokens = Tokens(KeySet(jwks_at(str(tmp_path / "jwks.json"))), LOCAL)
    assert one(tokens, made.token(Role.OPERATOR)).role is Role.OPERATOR
    (tmp_path / KEY_FILE).write_text("nonsense")
    with pytest.raises(Refused, match="no key"):
        Signer.read(tmp_path)


def test_a_client_that_lives_for_days_always_shows_a_young_token(tmp_path, monkeypatch):
    import httpx

    Signer.make(tmp_path)
    auth = OperatorAuth(tmp_path)
    now = time.monotonic()

    def shown(later):
        monkeypatch.setattr(time, "monotonic", lambda: now + later)
        return next(auth.auth_flow(httpx.Request("GET", "http://x"))).headers["authorization"]

    first, same = shown(0), shown(100)
    assert first == same
    later = time.time() + 200
    monkeypatch.setattr(time, "time", lambda: later)
    assert shown(200) != first
