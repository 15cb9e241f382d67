"""From a token (JWT) to the caller it proves."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import httpx2
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet, OctKey

from connectors.sections import secret_value
from pipeline.access import READ, Caller
from pipeline.documents import Json
from pipeline.embedding.http_client import refuse_metadata_service
from pipeline.errors import ConfigurationError, LarderError, RequestRejected, TokenRefused
from pipeline.ledger import tenant_id
from pipeline.search.cache import MemoryCache
from workers.embedded import Credentials
from workers.embedded.locating import uses_embedded
from workers.settings import Settings
from workers.settings.api import HMAC, AuthSettings

LONGEST_TOKEN = 16_000
"""Characters."""
REFETCH_SECONDS = 60.0
"""Public keys are asked for again at most that often, however many tokens name one that is not known."""
MOST_KEYS_BYTES = 1_000_000
FETCH_SECONDS = 5.0
LEEWAY = 10
"""Seconds by which clocks may differ."""
MOST_PROVED = 10_000
PROVED_SECONDS = 600.0
"""A token that was proved is not proved again for so long, unless it ends before."""
WAY_OUT = "set LARDER_JWT_SECRET, or LARDER_JWKS_URL and auth.algorithm"


def secret_of(settings: Settings) -> str:
    """The shared secret of HS256.

    Raises:
        ConfigurationError: there is none.
    """
    if found := secret_value(settings.rag.auth.secret):
        return found
    if not (uses_embedded(settings) or (settings.data / "credentials.json").exists()):
        raise ConfigurationError("the API has no secret to prove tokens with", fix=WAY_OUT)
    return Credentials.of_folder(settings.data).jwt


class TokenUnproved(TokenRefused):
    """It was not made with the key: a guess, or from elsewhere."""


class PublicKeys:
    """The keys of a JWKS, from a file or an address; `clock` gives seconds that never go back."""

    def __init__(self, read: Callable[[], bytes], clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: Mapping[str, Any] = {}
        self._read_at = float("-inf")

    def of(self, key_id: object) -> Any:
        """The key of this id; of all keys the only one if a token names none.

        Raises:
            TokenRefused: there is none.
        """
        with self._lock:
            if key_id not in self._keys and self._clock() - self._read_at >= REFETCH_SECONDS:
                self._read_at = self._clock()
                with suppress(httpx2.HTTPError, LarderError, OSError, ValueError, JoseError):
                    found = KeySet.import_key_set(json.loads(self._read()))
                    self._keys = {str(key.kid): key for key in found.keys if key.key_type != "oct"}
            keys = self._keys
        if key_id is None and len(keys) == 1:
            return next(iter(keys.values()))
        if not isinstance(key_id, str) or key_id not in keys:
            # Where no key can be had, nobody is to blame.
            refused = TokenUnproved if keys else TokenRefused
            raise refused("the token was signed with a key that is not known")
        return keys[key_id]


def _fetch(url: str) -> bytes:
    """What is at the address, in bounded time and size; a redirect is not followed."""
    end, found = time.monotonic() + FETCH_SECONDS, bytearray()
    with (
        httpx2.Client(event_hooks={"request": [refuse_metadata_service]}, timeout=FETCH_SECONDS) as client,
        client.stream("GET", url) as answer,
    ):
        answer.raise_for_status()
        for piece in answer.iter_bytes():
            found += piece
            if len(found) > MOST_KEYS_BYTES or time.monotonic() > end:
                raise ValueError
    return bytes(found)


class Verifier:
    """Proves tokens as one installation's settings say."""

    def __init__(self, settings: Settings) -> None:
        auth = self._auth = settings.rag.auth
        self._proved = MemoryCache[tuple[Caller, float]](entries=MOST_PROVED, seconds=PROVED_SECONDS)
        if auth.algorithm == HMAC:
            secret = OctKey.import_key(secret_of(settings))
            self._key: Callable[[object], Any] = lambda _kid: secret
        elif auth.jwks_file:
            self._key = PublicKeys(settings.resolve(auth.jwks_file).read_bytes).of
        else:
            self._key = PublicKeys(lambda: _fetch(str(auth.jwks_url))).of
        self._claims = jwt.JWTClaimsRegistry(
            leeway=LEEWAY,
            iss={"essential": True, "value": auth.issuer},
            aud={"essential": True, "value": auth.audience},
            exp={"essential": True},
            iat={"essential": True},
            sub={"essential": True},
            tenant={"essential": True},
        )

    def caller(self, token: str) -> Caller:
        """Whom the token proves; one that was proved a short while ago and still holds is not proved again.

        Raises:
            TokenUnproved: nobody, and whoever made it has not the key.
            TokenRefused: nobody; the message says why, without the token.
        """
        if len(token) > LONGEST_TOKEN:
            raise TokenUnproved(f"the token is longer than {LONGEST_TOKEN:,} characters")
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
        if (kept := self._proved.get("", digest)) and kept[1] > time.time():
            return kept[0]
        wrong: type[TokenRefused] = TokenUnproved
        try:
            made = jwt.decode(token, lambda one: self._key(one.headers().get("kid")), [self._auth.algorithm])
            wrong = TokenRefused
            self._claims.validate(made.claims)
            found = _caller(made.claims)
        except JoseError as error:
            # Their descriptions name a claim at most.
            raise wrong(f"the token is refused: {error.error.replace('_', ' ')}") from None
        except RequestRejected as error:
            raise wrong(f"the token is refused: {error.message}") from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise wrong("the token is refused: it is none") from None
        self._proved.put("", digest, (found, float(made.claims["exp"]) + LEEWAY))
        return found


def _caller(claims: Json) -> Caller:
    tenant, subject = claims["tenant"], claims["sub"]
    if not (isinstance(tenant, str) and tenant.strip()):
        raise RequestRejected("tenant must be a name or an id")
    return Caller(
        tenant=tenant_id(tenant),
        tenant_name=tenant,
        subject=subject,
        projects=tuple(_texts(claims, "projects")),
        permissions=frozenset(_texts(claims, "permissions") if "permissions" in claims else [READ]),
        level=claims.get("security_level", "internal"),
        groups=tuple(_texts(claims, "groups")),
    )


def _texts(claims: Json, name: str) -> Iterator[str]:
    found = claims.get(name) or []
    if not isinstance(found, list) or not all(isinstance(one, str) and one for one in found):
        raise RequestRejected(f"{name} must be a list of texts")
    yield from found


def issue_token(settings: Settings, caller: Caller, *, hours: float) -> str:
    """A token for this caller, for development.

    Raises:
        ConfigurationError: tokens of this installation are made elsewhere.
    """
    from workers.processes.supervisor import read_state  # the API proves tokens and needs none of it

    auth: AuthSettings = settings.rag.auth
    if auth.algorithm != HMAC:
        raise ConfigurationError(
            f"tokens made with {auth.algorithm} come from whoever has the private key",
            fix="ask there, or set auth.algorithm to HS256",
        )
    now = int(time.time())
    claims = {
        "iss": auth.issuer,
        "aud": auth.audience,
        "sub": caller.subject,
        "iat": now,
        "exp": now + int(hours * 3600),
        "tenant": caller.tenant_name,
        "projects": list(caller.projects),
        "permissions": sorted(caller.permissions),
        "security_level": caller.level,
        "groups": list(caller.groups),
    }
    # `larder up` may have been given a secret by its environment that this command has not.
    running = str((read_state(settings.data) or {}).get("jwt_secret") or "")
    secret = secret_value(auth.secret) or running or secret_of(settings)
    return jwt.encode({"alg": HMAC}, claims, OctKey.import_key(secret))
