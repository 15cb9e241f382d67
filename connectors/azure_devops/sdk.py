"""The azure-devops client library without its disk cache, retries and proxies, on our guarded session."""

from __future__ import annotations

import logging
import sys
import time
import types
import uuid
from dataclasses import dataclass
from typing import Any

from connectors.azure_devops.options import PRODUCT
from connectors.web import Access, guard
from pipeline.errors import ConfigurationError

DISCOVERY_SECONDS = 3600.0
"""How long the routes of a server are kept; the library would keep them until the process ends."""


class RouteCache(dict[str, Any]):
    """Routes by address for DISCOVERY_SECONDS; an empty answer counts as none, since it may be a broken one."""

    def __init__(self) -> None:
        super().__init__()
        self.stored_at: dict[str, float] = {}

    def __setitem__(self, url: str, routes: Any) -> None:
        super().__setitem__(url, routes)
        self.stored_at[url] = time.monotonic()

    def __contains__(self, url: object) -> bool:
        fresh = time.monotonic() - self.stored_at.get(str(url), 0.0) < DISCOVERY_SECONDS
        return fresh and bool(self.get(str(url)))


class NoDiskCache(dict[str, Any]):
    """Stands where the library keeps its cache on disk: always empty, so that the server is asked."""

    def __missing__(self, _url: str) -> None:
        return None

    def __setitem__(self, _url: str, _value: Any) -> None:
        return


def _load() -> Any:
    """The library's connection class.

    Importing it makes a folder in the user's home, which may be read-only, and its cache there is shared by
    all processes without a lock. With a module of ours in the place of that cache nothing touches the disk.
    """
    name = "azure.devops._file_cache"
    if name not in sys.modules:
        stand_in = types.ModuleType(name)
        vars(stand_in).update(OPTIONS_CACHE=NoDiskCache(), RESOURCE_CACHE=NoDiskCache())
        sys.modules[name] = stand_in
    from azure.devops import client, connection

    if not isinstance(client.Client._locations_cache, RouteCache):  # noqa: SLF001 (there is no public way)
        client.Client._locations_cache = RouteCache()  # noqa: SLF001 (ditto)
    for logger in ("azure.devops", "msrest"):  # both log whole answers when debugging
        logging.getLogger(logger).setLevel(logging.INFO)
    return connection.Connection


def sdk_models() -> Any:
    """The library's module of request and answer classes for work items."""
    _load()  # importing anything of the library first would bring its cache on disk
    from azure.devops.v7_1.work_item_tracking import models

    return models


@dataclass(frozen=True, kw_only=True)
class SdkClients:
    """The library's clients for one address; not thread-safe."""

    work: Any
    """Work items."""
    core: Any
    """Projects."""


def open_clients(base_url: str, pat: str, access: Access) -> SdkClients:
    """Clients of the library for `base_url`; nothing is sent yet.

    Raises:
        ConfigurationError: there is no token.
    """
    if not pat.strip():
        raise ConfigurationError(
            f"there is no token for {PRODUCT}", fix="set auth.pat to a personal access token (AZURE_PAT)"
        )
    connection = _load()(base_url=base_url, creds=_credentials(pat.strip(), access))
    # The areas would tell on which hosts to find the services; no other host may be asked anyway.
    connection._resource_areas = []  # noqa: SLF001 (spares the request)
    factory = connection.clients_v7_1
    clients = SdkClients(work=factory.get_work_item_tracking_client(), core=factory.get_core_client())
    session_id = str(uuid.uuid4())
    for client in (clients.work, clients.core):
        client.config.proxies.use_env_settings = False
        client.config.retry_policy.retries = 0
        client.config.keep_alive = True
        # Else the library sends one session id, the last that any server answered with, to all servers.
        client.config.additional_headers["X-TFS-Session"] = session_id
    return clients


def _credentials(pat: str, access: Access) -> Any:
    """The token, with an empty user name; the library signs each session, which is when our adapter is mounted."""
    from msrest.authentication import BasicAuthentication

    class Credentials(BasicAuthentication):
        def signed_session(self, session: Any = None) -> Any:
            signed = super().signed_session(session)
            guard(signed, access)
            return signed

    return Credentials("", pat)
