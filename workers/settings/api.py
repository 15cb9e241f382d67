"""The HTTP API: where it listens, what it takes, and whose tokens let somebody in."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from connectors.sections import (
    ConfigSection,
    Expected,
    Folder,
    Mismatch,
    OneOf,
    Secret,
    Size,
    Text,
    Texts,
    WebUrl,
    Whole,
    refuse,
    secret_value,
)

HMAC = "HS256"
ALGORITHMS = (HMAC, "RS256", "ES256")
LEAST_SECRET = 32
"""Bytes of a shared secret: as many as its hash has (RFC 7518, 3.2)."""


class ApiSettings(ConfigSection):
    """The HTTP API, `larder api`."""

    host: Text = "127.0.0.1"
    """Address to listen on."""
    port: Whole = Field(default=0, ge=0, le=65_535)
    """0 is any free port, and the same at the next start."""
    root_path: Annotated[str, AfterValidator(lambda path: path.rstrip("/")), Expected("text")] = Field(
        default="", examples=["/larder"]
    )
    """Path before all its addresses, where a proxy puts one."""
    cors_origins: Texts = Field(default=(), examples=[["https://backlog.example.com"]])
    """Sites whose pages may call it from a browser. Empty: none."""
    max_body: Size = Field(default="20m", validate_default=True)
    """Largest body of a request."""
    requests_per_minute: Whole = Field(default=600, ge=1)
    """What one user may ask, all at once if need be; more is refused with the time to wait."""
    at_once: Whole = Field(default=16, ge=1)
    """Requests of one user that may be under way; more wait half a minute for their turn before they are refused."""
    wrong_tokens_per_minute: Whole = Field(default=20, ge=1)
    """Wrong tokens of one address that are answered with 401; more get 429 and the time to wait. Right ones go on."""


class AuthSettings(ConfigSection):
    """The tokens (JWT) of the HTTP API: who made them, for whom, and how they are proved."""

    algorithm: Annotated[str, AfterValidator(str.upper), OneOf([name.lower() for name in ALGORITHMS])] = HMAC
    """HS256 with a secret, or RS256 or ES256 with public keys; a token made otherwise is refused."""
    secret: Secret | None = Field(default=None, examples=["${LARDER_JWT_SECRET}"])
    """Of HS256, 32 bytes or more. Empty: with the embedded servers one is made."""
    jwks_url: WebUrl | None = Field(default=None, examples=["https://login.example.com/keys"])
    """Where the public keys of RS256 and ES256 are."""
    jwks_file: Folder | None = Field(default=None, examples=["./keys.json"])
    """The same as a file."""
    issuer: Text = "larder"
    """`iss` of a token."""
    audience: Text = "larder"
    """`aud` of a token."""

    @model_validator(mode="after")
    def _has_keys(self) -> Self:
        wrong = []
        if self.algorithm == HMAC:
            if self.secret and len(secret_value(self.secret).encode()) < LEAST_SECRET:
                wrong.append(Mismatch(key="secret", expected=f"a secret of {LEAST_SECRET} bytes or more"))
        elif not (self.jwks_url or self.jwks_file):
            fix = "name jwksUrl or jwksFile"
            wrong.append(Mismatch(key="jwks_url", expected=f"public keys for {self.algorithm}", fix=fix))
        refuse(self, wrong)
        return self
