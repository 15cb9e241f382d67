"""Holds: an embedding configuration that is refused is not asked again and again, and blames no document.

A hold belongs to the fingerprint of a configuration. Workers with another one, such as the mended one, do not see it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, RowMapping, text

from pipeline.errors import ConfigurationError, EmbeddingError, LarderError, TextRejected

OLD_PROBES = 3
"""A hold that was not confirmed for so many probes says nothing about now."""


@dataclass(frozen=True, kw_only=True)
class Hold:
    """Why nothing is embedded with a configuration, and when that is tried again."""

    fingerprint: str
    code: str
    error: str
    """What was found and what to do; without any text or secret."""
    since: datetime
    probe_at: datetime


def fingerprint(*parts: object) -> str:
    """Names a configuration without telling it; give a secret in here as it is, only its hash gets out."""
    joined = "\0".join(hashlib.sha256(str(part).encode()).hexdigest() for part in parts)
    return hashlib.sha256(joined.encode()).hexdigest()[:16]


def holds(error: LarderError) -> bool:
    """True if the error speaks of the configuration: whatever text is sent, it will come again."""
    if error.transient or isinstance(error, TextRejected):
        return False
    return isinstance(error, EmbeddingError | ConfigurationError)


def hold(connection: Connection, name: str, error: LarderError, *, probe_seconds: float) -> None:
    """Nobody with this configuration embeds until it is probed again."""
    connection.execute(
        text("""
            insert into embedding_hold (fingerprint, code, error, probe_at)
            values (:name, :code, :error, now() + make_interval(secs => :probe))
            on conflict (fingerprint) do update set code = excluded.code, error = excluded.error,
                seen_at = now(), probe_at = excluded.probe_at"""),
        {"name": name, "code": error.code, "error": str(error), "probe": probe_seconds},
    )


def release(connection: Connection, name: str) -> None:
    """It works again."""
    connection.execute(text("delete from embedding_hold where fingerprint = :name"), {"name": name})


def release_others(connection: Connection, name: str) -> None:
    """The configuration is `name` now; a worker that still has an old one holds it again by itself."""
    connection.execute(text("delete from embedding_hold where fingerprint <> :name"), {"name": name})


def standing(connection: Connection, name: str, *, probe_seconds: float) -> Hold | None:
    """The hold on this configuration, if there is one that is not long forgotten."""
    row = (
        connection.execute(
            text("""
                select fingerprint, code, error, since, probe_at from embedding_hold
                where fingerprint = :name and seen_at > now() - make_interval(secs => :old)"""),
            {"name": name, "old": OLD_PROBES * probe_seconds},
        )
        .mappings()
        .one_or_none()
    )
    return _hold(row) if row else None


def latest(connection: Connection, name: str, *, probe_seconds: float) -> Hold | None:
    """The hold to show: that on this configuration, else the newest of workers that have another one."""
    row = (
        connection.execute(
            text("""
                select fingerprint, code, error, since, probe_at from embedding_hold
                where seen_at > now() - make_interval(secs => :old)
                order by fingerprint = :name desc, seen_at desc limit 1"""),
            {"name": name, "old": OLD_PROBES * probe_seconds},
        )
        .mappings()
        .one_or_none()
    )
    return _hold(row) if row else None


def _hold(row: RowMapping) -> Hold:
    return Hold(**row)


def claim_probe(connection: Connection, name: str, *, probe_seconds: float) -> bool:
    """True for one caller when it is time to try again; the others stay away until that is answered."""
    row = connection.execute(
        text("""
            update embedding_hold set probe_at = now() + make_interval(secs => :probe)
            where fingerprint = :name and probe_at <= now() returning fingerprint"""),
        {"name": name, "probe": probe_seconds},
    ).one_or_none()
    return row is not None


def probe_due(connection: Connection, name: str) -> bool:
    """True if it is time to try again."""
    found = connection.execute(
        text("select probe_at <= now() from embedding_hold where fingerprint = :name"), {"name": name}
    ).scalar()
    return bool(found)
