"""Loading of settings from the file and the environment, with all problems found at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pydantic import SecretStr, ValidationError
from pydantic.alias_generators import to_camel

from connectors import SourceContext
from connectors.sections import host_of, secret_value
from pipeline.database.vector_stores import StoreOptions
from pipeline.documents import language_metadata
from pipeline.embedding.known_models import PROVIDER_FACTS
from pipeline.ledger import project_id, tenant_id
from workers.settings.diagnosis import explain, is_secret
from workers.settings.embedding import EmbeddingModel
from workers.settings.environment import CONFIG, OVERRIDES, lookup, override
from workers.settings.models import Configuration, ConfigurationFile
from workers.settings.sources import SourceSettings, is_off
from workers.settings.stores import configured
from workers.settings.yamlfile import (
    ROOT,
    KeyPath,
    SettingsError,
    SettingsProblem,
    Tree,
    Variable,
    names_in,
    read,
    spelled,
)

if TYPE_CHECKING:
    from connectors.web.limiter import RequestLimiter

FILE = "larder.yaml"
MAX_PAUSE_SECONDS = 30.0
"""Seconds of pauses that one slice of a walk waits out at most: a second is no reason to put it back."""

UNUSED: Mapping[str, str] = {
    "embedding.cache.path": "the cache of vectors is a table of the database",
    "embedding.cache.enabled": "vectors of texts already embedded are kept in any case",
    "enrichment.generator": "learnings and suggestions quote what people wrote",
    **dict.fromkeys(
        (
            *("queue.maxInFlight", "queue.upsertRows", "queue.maxCrashes", "enrichment.maxAttempts"),
            *("retrieval.weights.covered", "retrieval.weights.centroid", "retrieval.weights.outdated"),
            *(
                "embedding.probeSeconds",
                "retrieval.buildAt",
                "retrieval.rerank.batchSize",
                "auth.leeway",
                "flower.maxTasks",
            ),
        ),
        "Larder has one value for it that fits everywhere",
    ),
    "sources.*.loader": "the shape of backlog items is known",
    "sources.*.metadata.extractors": "a backlog item always brings pbi_id, timestamp and quality_score",
    "sources.*.chunking.preserveFields": "the strategy pbi_aware keeps the parts of an item together",
    "sources.*.chunking.chunkByField": "the strategy pbi_aware keeps the parts of an item together",
}
"""Keys of other tools and of earlier releases that are left unread and noted; `*` is any item."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything configured, read once at start."""

    rag: Configuration
    path: Path | None
    """The file, absolute; None if there is none."""
    folder: Path
    """Folder at which relative paths of the configuration start, absolute."""
    notes: tuple[str, ...] = ()
    """Warnings: keys that are not used."""
    variables: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Name of each variable that is read -> the sections, such as `auth`, in which it is a secret or part of one;
    none of one that stands in any other value."""

    @property
    def database_url(self) -> str | None:
        """PostgreSQL as the application role; None for the embedded server. Secret."""
        return secret_value(self.rag.storage.database.url) or None

    @property
    def broker_url(self) -> str | None:
        """Valkey, Redis or RabbitMQ; None for the embedded server. Secret."""
        return secret_value(self.rag.storage.broker.url) or None

    @property
    def valkey_url(self) -> str | None:
        """The Valkey or Redis beside RabbitMQ; None if the broker is one. Secret."""
        return secret_value(self.rag.storage.broker.valkey_url) or None

    @property
    def tenant(self) -> str:
        """Id or name of the tenant of everything without its own; see `pipeline.ledger`."""
        return self.rag.tenant

    @property
    def project(self) -> str:
        """Id or name of the project of everything without its own."""
        return self.rag.project

    @property
    def tenant_id(self) -> UUID:
        """The id of `tenant`."""
        return tenant_id(self.tenant)

    @property
    def project_id(self) -> UUID:
        """The id of `project`."""
        return project_id(self.tenant_id, self.project)

    @property
    def data(self) -> Path:
        """The folder of the embedded servers, absolute."""
        return self.resolve(self.rag.storage.data)

    def resolve(self, path: Path) -> Path:
        """A path of the configuration as an absolute one."""
        return self.folder / path.expanduser()

    @property
    def stores(self) -> dict[str, StoreOptions]:
        """Configured vector stores beside PostgreSQL, by name."""
        storage = self.rag.storage
        options = configured(self.rag.provider, storage.local, storage.cloud, self.resolve)
        return {one.type: one for one in options}

    def context_of(self, source: SourceSettings, limiter: Callable[[], RequestLimiter]) -> SourceContext:
        """Context of a source's connector beside its section; `limiter` is called by services only."""
        return SourceContext(
            folder=self.folder,
            closed=self.data,
            decisions=self.rag.decisions,
            levels=self.rag.security.levels,
            metadata=language_metadata(source.language or self.rag.language),
            limiter=limiter,
            max_pause=min(MAX_PAUSE_SECONDS, self.rag.queue.lease_seconds / 4),
        )


def load(path: Path | None, environ: Mapping[str, str] | None) -> Settings:
    """The settings of `path`, else of the file LARDER_CONFIG names, else of ./larder.yaml, else the defaults.

    Without `environ` the variables are those of this process.

    Raises:
        SettingsError: with everything that is wrong.
    """
    environ = os.environ if environ is None else environ
    named = path or lookup(environ)(CONFIG)
    file = Path(named or FILE)
    has_file = bool(named) or file.exists()
    tree = Tree(file="defaults", data={ROOT: {}})
    if has_file:
        tree = read(file, lookup=lookup(environ), unused=_unused)
    in_file = dict(tree.variables)
    override(tree, environ)
    rag = _checked(tree)
    tree.notes += _readable_secrets(rag, tree)
    absolute = file.resolve()
    folder = absolute.parent if has_file else Path.cwd()
    return Settings(
        rag=rag,
        path=absolute if has_file else None,
        folder=folder,
        notes=tuple(tree.notes),
        variables=_variables(tree, chain(in_file.items(), tree.variables.items())),
    )


def from_mapping(rag: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of the section `rag` as a program gives it; paths are relative to the current folder.

    Variables override it as they do a file.

    Raises:
        SettingsError: with everything that is wrong.
    """
    tree = Tree(file="configuration", data={})
    tree.data[ROOT] = _used(dict(rag), (ROOT,), tree.notes)
    override(tree, os.environ if environ is None else environ)
    return Settings(rag=_checked(tree), path=None, folder=Path.cwd(), notes=tuple(tree.notes))


def _used(value: Any, path: KeyPath, notes: list[str]) -> Any:
    """A copy without the keys that are not used, each of which is noted."""
    if isinstance(value, dict):
        reasons = {key: _unused((*path, key)) for key in value if isinstance(key, str)}
        notes += [f"{spelled((*path, key))}: not used: {why}" for key, why in reasons.items() if why]
        return {key: _used(one, (*path, key), notes) for key, one in value.items() if not reasons.get(key)}
    if isinstance(value, list):
        return [_used(one, (*path, number), notes) for number, one in enumerate(value)]
    return deepcopy(value)


def _checked(tree: Tree) -> Configuration:
    _check_sources(tree)
    _leave_out_unset_store(tree)
    try:
        rag = ConfigurationFile.model_validate(tree.data).rag
    except ValidationError as error:
        explain(error, tree, ConfigurationFile)
    else:
        _check_hosts(rag, tree)
        _check_stores(rag, tree)
    if tree.problems:
        raise SettingsError(chain.from_iterable(tree.problems.values()))
    return rag


def _variables(tree: Tree, uses: Iterable[tuple[KeyPath, Variable]]) -> dict[str, frozenset[str]]:
    """Sections by variable; see `Settings.variables`."""
    secret: dict[str, frozenset[str]] = {CONFIG: frozenset(), **{one.name: frozenset() for one in OVERRIDES}}
    plain = set()
    for path, variable in uses:
        for name in names_in(variable.origin):
            if is_secret(path, tree, ConfigurationFile):
                section = "stores" if path[1:3] == ("storage", "cloud") else to_camel(str(path[1]))
                secret[name] = secret.get(name, frozenset()) | {section}
            else:
                plain.add(name)
    return secret | dict.fromkeys(plain, frozenset())


def _services(rag: Configuration) -> Iterator[tuple[KeyPath, Any, str]]:
    """Path, section and address of each service that is asked over the network."""
    models: dict[KeyPath, EmbeddingModel | None] = {
        ("embedding",): rag.embedding,
        ("embedding", "previous"): rag.embedding.previous,
        ("stories", "embedding"): rag.stories.embedding,
    }
    for path, model in models.items():
        if model and (url := str(model.base_url or PROVIDER_FACTS[model.provider].base_url)):
            yield (ROOT, *path), model, url
    for n, source in enumerate(rag.sources):
        if (url := str(getattr(source, "place", ""))).startswith(("http://", "https://")):
            yield (ROOT, "sources", n), source, url
    for n, channel in enumerate(rag.monitoring.alerts.channels):
        if channel.url:
            yield (ROOT, "monitoring", "alerts", "channels", n), channel, channel.url
    if cloud := rag.storage.cloud:
        yield from (((ROOT, "storage", "cloud"), cloud, url) for url in cloud.addresses)
    if (traces := rag.monitoring.tracing).endpoint:
        yield (ROOT, "monitoring", "tracing", "endpoint"), traces, traces.endpoint
    if rag.auth.jwks_url:
        yield (ROOT, "auth", "jwksUrl"), None, rag.auth.jwks_url  # gets no secret


def _check_hosts(rag: Configuration, tree: Tree) -> None:
    """Refuse hosts that `security.hosts` does not name, if it names any."""
    allowed = rag.security.hosts
    for key, _, url in _services(rag):
        if allowed and not any(fnmatchcase(host_of(url), host.lower()) for host in allowed):
            tree.complain(key, SettingsProblem(actual=repr(host_of(url)), allowed="a host of security.hosts"))


def _readable_secrets(rag: Configuration, tree: Tree) -> Iterator[str]:
    """A warning for each address beyond this machine that gets a key or a password without TLS."""
    for key, section, url in _services(rag):
        fields = getattr(type(section), "model_fields", ())
        secret = any(isinstance(getattr(section, name), SecretStr) for name in fields)
        host = host_of(url)
        is_local = host in ("localhost", "::1") or host.startswith("127.")
        if secret and url.startswith("http://") and not is_local:
            yield f"{tree.place(key)}: {spelled(key)}: its secret is readable on the way to http://{host}; use https"


def _leave_out_unset_store(tree: Tree) -> None:
    """A store in the cloud that nobody asks for needs no values for its variables, and is left out without them."""
    path: KeyPath = (ROOT, "storage", "cloud")
    section = tree.at(path)
    unset = [p for p, problems in tree.problems.items() if p[:3] == path and problems[0].unset]
    if (
        not unset
        or not isinstance(section, dict)
        or tree.at((ROOT, "provider")) == section.get("type", "pinecone")
    ):
        return
    for key in unset:
        del tree.problems[key]
    tree.notes.append(f"{tree.place(path)}: {spelled(path)}: not used: a variable in it is not set")
    del tree.at(path[:-1])[path[-1]]


def _check_stores(rag: Configuration, tree: Tree) -> None:
    """Refuse a provider without a section."""
    stores = [one.type for one in configured(rag.provider, rag.storage.local, rag.storage.cloud, Path)]
    if rag.provider not in ("pgvector", *stores):
        fix = f"write storage.cloud: {{type: {rag.provider}, ...}}"
        allowed = "a store that the section storage has, or pgvector"
        tree.complain(
            (ROOT, "provider"), SettingsProblem(actual=repr(rag.provider), allowed=allowed, fix=fix)
        )


def _check_sources(tree: Tree) -> None:
    """Check that names are unique; a source that is switched off needs no values for its variables."""
    sources = tree.at((ROOT, "sources"))
    names = set()
    for index, source in enumerate(sources if isinstance(sources, list) else ()):
        if not isinstance(source, dict):
            continue
        source_path: KeyPath = (ROOT, "sources", index)
        name = source.get("name")
        if name is not None and str(name) in names:
            fault = SettingsProblem(actual=repr(name), allowed="a name that no other source has")
            tree.complain((*source_path, "name"), fault)
        names.add(str(name))
        for path in [
            p for p, problems in tree.problems.items() if p[:3] == source_path and problems[0].unset
        ]:
            if is_off(source):
                del tree.problems[path]
                del tree.at(path[:-1])[path[-1]]


def _unused(path: KeyPath) -> str:
    return UNUSED.get(".".join("*" if isinstance(part, int) else to_camel(part) for part in path[1:]), "")
