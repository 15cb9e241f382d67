"""Who is let in: every trick with a token ends with 401."""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi.testclient import TestClient
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey
from pydantic import SecretStr

from pipeline.errors import LarderError, TokenRefused
from pipeline.ledger import project_id, tenant_id
from tests.workers.api.conftest import ACME
from workers.api import callers
from workers.api.callers import Attempts
from workers.app.tokens import REFETCH_SECONDS, PublicKeys, TokenUnproved, Verifier, _fetch, issue_token
from workers.runtime import Runtime
from workers.settings import load

SECRET = "a-secret-of-the-tests-of-32-bytes-and-more"
NOW = int(time.time())
CLAIMS = {
    "iss": "larder",
    "aud": "larder",
    "sub": "ann",
    "iat": NOW,
    "exp": NOW + 86_400,  # the tests of a run are collected long before the last of them runs
    "tenant": "acme",
    "projects": ["berth"],
    "permissions": ["read"],
}
BODY = {"project_id": str(project_id(ACME.tenant, "berth")), "query_text": "x"}


def signed(key: Any = None, alg: Any = "HS256", header: Any = None, **claims: Any) -> str:
    """A token; a claim that is None is left out."""
    told = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    return jwt.encode({"alg": alg, **(header or {})}, told, key or OctKey.import_key(SECRET), [alg])


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def crafted(header: dict[str, Any], claims: Any = None, secret: bytes = SECRET.encode()) -> str:
    """A token that the secret really signed, whatever its header says."""
    told = f"{part(header)}.{part(CLAIMS if claims is None else claims)}"
    mac = hmac.digest(secret, told.encode(), "sha256")
    return f"{told}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


RSA, EC = RSAKey.generate_key(2048, {"kid": "r"}), ECKey.generate_key("P-256", {"kid": "e"})


def status(api: TestClient, token: str) -> int:
    answer = api.post("/api/v1/rag/query", json=BODY, headers={"Authorization": f"Bearer {token}"})
    if answer.status_code == 401:
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        assert token[:40] not in answer.text
    return int(answer.status_code)


def test_a_token_fits_the_running_api_whose_secret_this_command_has_not(tmp_path: Path) -> None:
    given = "a-secret-that-only-larder-up-was-given"
    state = {"jwt_secret": given, "folder": tmp_path.stat().st_ino}
    (tmp_path / "state.json").write_text(json.dumps(state))

    token = issue_token(load(None, {"LARDER_DATA": str(tmp_path)}), ACME, hours=1)

    assert jwt.decode(token, OctKey.import_key(given)).claims["sub"] == ACME.subject


@pytest.mark.req("004-001", "004-018")
def test_without_a_token_nobody_is_let_in(api: TestClient) -> None:
    assert api.post("/api/v1/rag/query", json=BODY).status_code == 401
    for given in ("Basic YTpi", "Bearer", "Bearer ", "bearer"):
        assert api.post("/api/v1/rag/query", json=BODY, headers={"Authorization": given}).status_code == 401


def test_a_good_token_lets_in(api: TestClient) -> None:
    assert status(api, signed()) == 200
    assert status(api, signed(exp=int(time.time()) - 5)) == 200, "clocks differ a little"


FORGED = {
    "none": part({"alg": "none"}) + "." + part(CLAIMS) + ".",
    "None": part({"alg": "None"}) + "." + part(CLAIMS) + ".",
    "unsigned": part({"alg": "HS256"}) + "." + part(CLAIMS) + ".",
    "signed none": crafted({"alg": "none"}),
    "no alg": crafted({"typ": "JWT"}),
    "alg list": crafted({"alg": ["HS256"]}),
    "crit": crafted({"alg": "HS256", "crit": ["exp"], "exp": 1}),
    "kid list": crafted({"alg": "HS256", "kid": ["x"]})[:-4] + "AAAA",
    "claims list": crafted({"alg": "HS256"}, [1]),
    "claims text": crafted({"alg": "HS256"}, "x"),
    "deep": crafted({"alg": "HS256"})[:20] + "[" * 9000,
    "another secret": signed(OctKey.import_key("another-secret-of-at-least-32-bytes")),
    "HS512": signed(OctKey.import_key(SECRET * 2), "HS512"),
    "RS256": signed(RSA, "RS256"),
    "ES256": signed(EC, "ES256"),
    "kid path": signed(header={"kid": "../../../../dev/null"})[:-4] + "AAAA",
    "expired": signed(exp=NOW - 3600),
    "not yet": signed(nbf=NOW + 3600),
    "made later": signed(iat=NOW + 3600),
    "issuer": signed(iss="somebody"),
    "audience": signed(aud="something"),
    "audiences": signed(aud=["a", "b"]),
    **{f"no {name}": signed(**{name: None}) for name in ("iss", "aud", "sub", "iat", "exp", "tenant")},
    "empty tenant": signed(tenant=""),
    "tenant list": signed(tenant=["acme"]),
    "empty user": signed(sub=""),
    "projects text": signed(projects="berth"),
    "projects numbers": signed(projects=[1]),
    "permission": signed(permissions=["root"]),
    "level": signed(security_level="top"),
    "level number": signed(security_level=3),
    "groups": signed(groups={"a": 1}),
    "exp text": crafted({"alg": "HS256"}, {**CLAIMS, "exp": "tomorrow"}),
    "x": "x",
    "dots": "....",
    "abc": "a.b.c",
    "empty": "e30.e30.e30",
    "long": signed(more="x" * 1_000_000),
}


@pytest.mark.parametrize("trick", FORGED)
def test_tricks_are_refused(api: TestClient, trick: str) -> None:
    assert status(api, FORGED[trick]) == 401


def test_a_permission_is_needed(api: TestClient) -> None:
    assert status(api, signed(permissions=["write"])) == 403
    assert status(api, signed(permissions=["admin"])) == 200
    assert status(api, signed(permissions=[])) == 403
    assert status(api, signed(permissions=None)) == 200, "left out: to read"


class TestManyWrongTokens:
    """One address may send three in a minute."""

    @pytest.fixture
    def clock(self, api: TestClient) -> Iterator[list[float]]:
        now, state = [0.0], cast("Any", api.app).state
        before, state.attempts = state.attempts, Attempts(3, clock=lambda: now[0])
        yield now
        state.attempts = before

    @staticmethod
    def at(api: TestClient, address: str) -> TestClient:
        return TestClient(api.app, client=(address, 1), raise_server_exceptions=False)

    def test_an_address_is_told_to_wait(self, api: TestClient, clock: list[float]) -> None:
        here, neighbour = self.at(api, "2001:db8::1"), self.at(api, "2001:db8::ffff:2")
        for wrong in (FORGED["expired"], FORGED["audience"], FORGED["expired"]):
            assert status(here, wrong) == 401, "whoever made it had the key, so it is no guess"
        told = [
            status(line, crafted({"alg": "HS256"}, secret=bytes([n])))
            for n, line in enumerate([here, neighbour] * 2)
        ]
        assert told == [401, 401, 401, 429]
        guess = crafted({"alg": "HS256"}, secret=b"guess")
        refused = here.post("/api/v1/rag/query", json=BODY, headers={"Authorization": f"Bearer {guess}"})
        assert (refused.status_code, 0 < int(refused.headers["Retry-After"]) <= 60) == (429, True)
        assert status(self.at(api, "198.51.100.7"), guess) == 401
        page = here.post("/console/login", data={"token": guess})
        assert (page.status_code, "Retry-After" in page.headers, "Too many wrong tokens" in page.text) == (
            429,
            True,
            True,
        )
        assert "Set-Cookie" not in page.headers
        clock[0] += 60
        assert status(here, guess) == 401

    @pytest.mark.usefixtures("clock")
    def test_nobody_is_kept_out_by_wrong_tokens_of_others(self, api: TestClient) -> None:
        shared, guess = "198.51.100.9", crafted({"alg": "HS256"}, secret=b"guess")
        assert [status(self.at(api, shared), guess) for _ in range(4)] == [401] * 3 + [429]
        # The same user from many places, as far as the guesses say.
        assert {status(self.at(api, f"198.51.100.{n}"), guess) for n in range(100, 140)} == {401}
        for n, address in enumerate((shared, "203.0.113.1")):
            assert status(self.at(api, address), signed(jti=f"never seen {n}")) == 200
        entered = self.at(api, shared).post(
            "/console/login", data={"token": signed(jti="entered")}, follow_redirects=False
        )
        assert (entered.status_code, "Set-Cookie" in entered.headers) == (303, True)

    @pytest.mark.usefixtures("clock")
    def test_the_token_of_metrics_is_guarded_alike(self, api: TestClient, runtime: Runtime) -> None:
        told, rag = runtime.rag.monitoring, runtime.rag
        metered = told.model_copy(
            update={"metrics": told.metrics.model_copy(update={"token": SecretStr("t0ken")})}
        )
        runtime.rag = rag.model_copy(update={"monitoring": metered})
        try:
            codes = [
                api.get("/metrics", headers={"Authorization": f"Bearer {guess}"}).status_code
                for guess in ("t0ken", "a", "b", "c", "d", "t0ken")
            ]
        finally:
            runtime.rag = rag
        assert codes == [200, 401, 401, 401, 429, 200]

    def test_what_is_remembered_of_them_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(callers, "MAX_ADDRESSES", 10)
        attempts = Attempts(3)
        for n in range(100):
            with pytest.raises(TokenUnproved), attempts.counted(f"address {n}"):
                raise TokenUnproved("x")
        assert len(attempts._wrong) == 10


class TestPublicKeys:
    @pytest.fixture
    def verifier(self, tmp_path: Path) -> Verifier:
        public = {"keys": [RSA.as_dict(private=False), OctKey.import_key(SECRET, {"kid": "o"}).as_dict()]}
        (tmp_path / "keys.json").write_text(json.dumps(public))
        (tmp_path / "larder.yaml").write_text("rag:\n  auth: {algorithm: RS256, jwksFile: ./keys.json}\n")
        return Verifier(load(tmp_path / "larder.yaml", {}))

    def test_the_private_key_signs_and_the_public_one_proves(self, verifier: Verifier) -> None:
        caller = verifier.caller(signed(RSA, "RS256", {"kid": "r"}))
        assert (caller.tenant, caller.subject, caller.projects) == (tenant_id("acme"), "ann", ("berth",))
        assert verifier.caller(signed(RSA, "RS256")).subject == "ann", "one key needs no name"

    @pytest.mark.parametrize(
        "forged",
        [
            crafted({"alg": "HS256", "kid": "r"}, secret=RSA.as_pem(private=False)),
            signed(OctKey.import_key(SECRET), "HS256", {"kid": "o"}),
            signed(RSAKey.generate_key(2048), "RS256", {"kid": "r"}),
            signed(RSA, "RS256", {"kid": "unknown"}),
            signed(RSA, "PS256", {"kid": "r"}),
            signed(EC, "ES256", {"kid": "r"}),
            signed(EC, "ES256", {"jwk": EC.as_dict(private=False)}),
            signed(EC, "ES256", {"jku": "http://127.0.0.1:1/keys", "kid": "e"}),
            signed(EC, "ES256", {"x5u": "http://127.0.0.1:1/keys", "kid": "e"}),
        ],
        ids=range(9),
    )
    def test_confusions_are_refused(self, verifier: Verifier, forged: str) -> None:
        with pytest.raises(TokenRefused):
            verifier.caller(forged)

    def test_keys_are_fetched_again_seldom(self) -> None:
        now, reads = [0.0], []
        keys: list[Any] = [RSA.as_dict(private=False)]

        def read() -> bytes:
            reads.append(now[0])
            return json.dumps({"keys": keys}).encode()

        found = PublicKeys(read, clock=lambda: now[0])
        assert found.find("r")
        for _ in range(50):
            with pytest.raises(TokenRefused):
                found.find("e")
        assert len(reads) == 1
        keys.append(EC.as_dict(private=False))
        now[0] += REFETCH_SECONDS
        assert found.find("e")
        assert len(reads) == 2

    def test_keys_are_not_fetched_from_where_clouds_hand_out_theirs(self) -> None:
        name = "http://2852039166/keys"  # of it, that the resolver knows
        with pytest.raises(LarderError, match="hands out keys"):
            _fetch(name)
        with pytest.raises(TokenRefused):
            PublicKeys(lambda: _fetch(name)).find("r")

    def test_keys_that_cannot_be_read_let_nobody_in(self) -> None:
        def away() -> bytes:
            raise OSError

        with pytest.raises(TokenRefused):
            PublicKeys(away).find("r")
