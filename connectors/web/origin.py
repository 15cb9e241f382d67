"""Scheme, host and port of an address: the measure of what may be contacted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

import requests

from connectors.web.faults import ADDRESS
from pipeline.errors import ConfigurationError

PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True)
class Origin:
    """One server; two addresses lead to it if all three parts are the same."""

    scheme: str
    host: str
    port: int

    @classmethod
    def configured(cls, address: str) -> Self:
        """Where a configured address leads.

        Raises:
            ConfigurationError: it is no http address, or holds a user name or password.
        """
        try:
            url = requests.Request("GET", address.strip()).prepare().url or ""
            parts = urlsplit(url)
            port = parts.port or PORTS.get(parts.scheme, 0)
        except (ValueError, requests.RequestException):
            raise ConfigurationError(
                "the configured address is none", fix=f"{ADDRESS}: it begins with https://"
            ) from None
        if parts.username is not None or parts.password is not None:
            fix = "write them to auth instead, where they are kept secret"
            raise ConfigurationError("the configured address holds a user name or password", fix=fix)
        if not port or not parts.hostname:
            raise ConfigurationError(
                "the configured address is none", fix=f"{ADDRESS}: it begins with https://"
            )
        return cls(scheme=parts.scheme, host=parts.hostname, port=port)

    def holds(self, url: str) -> bool:
        """Whether a request to `url` would go to this server and nowhere else."""
        try:
            parts = urlsplit(url)
            port = parts.port or PORTS.get(parts.scheme, 0)
        except ValueError:
            return False
        return (parts.scheme, parts.hostname, port) == (self.scheme, self.host, self.port)

    @staticmethod
    def shown(url: str) -> str:
        """Scheme and host of any address, for messages: paths and queries may hold secrets."""
        try:
            parts = urlsplit(url)
            port = f":{parts.port}" if parts.port else ""
        except ValueError:
            return "an address that cannot be read"
        return f"{parts.scheme}://{parts.hostname or ''}{port}"

    @property
    def key(self) -> str:
        """Name of this server at the gate."""
        return f"{self.host}:{self.port}"

    def __str__(self) -> str:
        port = "" if self.port == PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}"
