"""Callers that tokens (JWT) prove."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from workers.local.embedded import Credentials
from workers.local.embedded.locating import uses_embedded
from workers.settings import Settings
from workers.settings.api import HMAC, AuthSettings

LONGEST_TOKEN = 16_000
"""Most characters of a token."""
REFETCH_SECONDS = 60.0
"""Shortest time between two fetches of the public keys, however many tokens name an unknown one."""
MOST_KEYS_BYTES = 1_000_000
FETCH_SECONDS = 5.0
LEEWAY = 10
"""Seconds by which clocks may differ."""
MOST_PROVED = 10_000
PROVED_SECONDS = 600.0
"""Seconds for which the proof of a token is reused, unless the token ends before."""
WAY_OUT = "set LARDER_JWT_SECRET, or LARDER_JWKS_URL and auth.algorithm"


def secret_of(settings: Settings) -> str:
    """The shared secret of HS256.

    Raises:
        ConfigurationError: there is none.
    """
    if secret := secret_value(settings.rag.auth.secret):
        return secret
    if not (uses_embedded(settings) or (settings.data / "credentials.json").exists()):
        raise ConfigurationError("the API has no secret to prove tokens with", fix=WAY_OUT)
    return Credentials.of_folder(settings.data).jwt


class TokenUnproved(TokenRefused):
    """The token was not made with the key: it is a guess, or comes from elsewhere."""


class PublicKeys:
    """The keys of a JWKS, from a file or an address; `clock` gives seconds that never go back."""

    def __init__(self, read: Callable[[], bytes], clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: Mapping[str, Any] = {}
        self._read_at = float("-inf")

    def find(self, key_id: object) -> Any:
        """The key of this id; of all keys the only one if a token names none.

        Raises:
            TokenRefused: there is none.
        """
        with self._lock:
            if key_id not in self._keys and self._clock() - self._read_at >= REFETCH_SECONDS:
                self._read_at = self._clock()
                with suppress(httpx2.HTTPError, LarderError, OSError, ValueError, JoseError):
                    key_set = KeySet.import_key_set(json.loads(self._read()))
                    self._keys = {str(key.kid): key for key in key_set.keys if key.key_type != "oct"}
            keys = self._keys
        if key_id is None and len(keys) == 1:
            return next(iter(keys.values()))
        if not isinstance(key_id, str) or key_id not in keys:
            # Without any keys the fault may be ours: the token then does not count as a guess.
            error_class = TokenUnproved if keys else TokenRefused
            raise error_class("the token was signed with a key that is not known")
        return keys[key_id]


def _fetch(url: str) -> bytes:
    """Read the address, in bounded time and size; a redirect is not followed."""
    end, content = time.monotonic() + FETCH_SECONDS, bytearray()
    with (
        httpx2.Client(event_hooks={"request": [refuse_metadata_service]}, timeout=FETCH_SECONDS) as client,
        client.stream("GET", url) as answer,
    ):
        answer.raise_for_status()
        for piece in answer.iter_bytes():
            content += piece
            if len(content) > MOST_KEYS_BYTES or time.monotonic() > end:
                raise ValueError
    return bytes(content)


class Verifier:
    """Proves tokens as one installation's settings say."""

    def __init__(self, settings: Settings) -> None:
        auth = self._auth = settings.rag.auth
        self._proved = MemoryCache[tuple[Caller, float]](entries=MOST_PROVED, seconds=PROVED_SECONDS)
        if auth.algorithm == HMAC:
            secret = OctKey.import_key(secret_of(settings))
            self._key: Callable[[object], Any] = lambda _kid: secret
        elif auth.jwks_file:
            self._key = PublicKeys(settings.resolve(auth.jwks_file).read_bytes).find
        else:
            self._key = PublicKeys(lambda: _fetch(str(auth.jwks_url))).find
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
        """The caller that the token proves; a recent proof that still holds is reused.

        Raises:
            TokenUnproved: the token was made without the key.
            TokenRefused: it proves no caller; the message says why, without the token.
        """
        if len(token) > LONGEST_TOKEN:
            raise TokenUnproved(f"the token is longer than {LONGEST_TOKEN:,} characters")
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
        if (cached := self._proved.get("", digest)) and cached[1] > time.time():
            return cached[0]
        error_class: type[TokenRefused] = TokenUnproved
        try:
            decoded = jwt.decode(
                token, lambda one: self._key(one.headers().get("kid")), [self._auth.algorithm]
            )
            error_class = TokenRefused
            self._claims.validate(decoded.claims)
            caller = _caller(decoded.claims)
        except JoseError as error:
            # The library's descriptions name a claim at most.
            raise error_class(f"the token is refused: {error.error.replace('_', ' ')}") from None
        except RequestRejected as error:
            raise error_class(f"the token is refused: {error.message}") from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise error_class("the token is refused: it is no JWT") from None
        self._proved.put("", digest, (caller, float(decoded.claims["exp"]) + LEEWAY))
        return caller


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
    texts = claims.get(name) or []
    if not isinstance(texts, list) or not all(isinstance(one, str) and one for one in texts):
        raise RequestRejected(f"{name} must be a list of texts")
    yield from texts


def caller_of(rights: Json, user: str, tenant: str, permissions: Iterable[str] = ("read",)) -> Caller:
    """The user of this name with the rights that a command's options say.

    Raises:
        ConfigurationError: one of the rights is none.
    """
    try:
        return Caller(
            tenant=tenant_id(tenant),
            tenant_name=tenant,
            subject=user,
            projects=tuple(rights["project"] or ["*"]),
            permissions=frozenset(permissions),
            level=rights["level"],
            groups=tuple(rights["group"] or ()),
        )
    except LarderError as error:
        raise ConfigurationError(error.message, fix=error.fix) from None


def issue_token(settings: Settings, caller: Caller, *, hours: float) -> str:
    """A token for this caller, for development.

    Raises:
        ConfigurationError: tokens of this installation are made elsewhere.
    """
    from workers.local.supervisor import read_state  # the API proves tokens and needs none of it

    auth: AuthSettings = settings.rag.auth
    if auth.algorithm != HMAC:
        raise ConfigurationError(
            f"tokens for {auth.algorithm} are signed with a private key that Larder does not have",
            fix="get one from their issuer, or set auth.algorithm to HS256",
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
