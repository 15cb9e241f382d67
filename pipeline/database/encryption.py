"""Encryption of metadata: the field `encrypted` contains them as one Fernet token."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import Connection, text

from pipeline.documents import Json
from pipeline.errors import ConfigurationError

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

SEALED = "encrypted"
UNKNOWN, OTHERWISE = "unknown key", "not as configured"
VARIABLE = "LARDER_ENCRYPTION_KEYS"
BATCH = 500


@dataclass(frozen=True, kw_only=True)
class Keyring:
    """Names of encrypted metadata, and the keys."""

    keys: str = ""
    """Keys separated by commas: the first encrypts, all decrypt. Secret."""
    fields: tuple[str, ...] = ()

    @cached_property
    def named(self) -> Mapping[str, Fernet]:
        """Short name (first digits of the hash) -> key."""
        from cryptography.fernet import Fernet  # only where something is encrypted: it costs 30 ms

        keys = filter(None, map(str.strip, self.keys.split(",")))
        try:
            return {hashlib.sha256(key.encode()).hexdigest()[:8]: Fernet(key) for key in keys}
        except ValueError:
            fix = "give keys from `larder keys new`, separated by commas"
            raise ConfigurationError(f"{VARIABLE} has an entry that is no key", fix=fix) from None

    def seal(self, metadata: Mapping[str, Any]) -> Json:
        """The metadata to store, with the configured fields encrypted.

        Raises:
            ConfigurationError: fields are to be encrypted and there is no key.
        """
        secret = {key: metadata[key] for key in self.fields if key in metadata}
        plain = {key: value for key, value in metadata.items() if key not in (SEALED, *secret)}
        if not secret:
            return plain
        for fernet in self.named.values():
            return {**plain, SEALED: fernet.encrypt(json.dumps(secret, default=str).encode()).decode()}
        message = f"metadata are to be encrypted ({', '.join(secret)}), and there is no key"
        raise ConfigurationError(message, fix=f"set {VARIABLE} to what `larder keys new` prints")

    def opened(self, metadata: Mapping[str, Any]) -> tuple[str, Json]:
        """(name of the key, decrypted metadata); (UNKNOWN, metadata with a message) if no key decrypts them.

        The name is OTHERWISE if the encrypted fields differ from the configured ones.
        """
        from cryptography.fernet import InvalidToken

        if SEALED not in metadata:
            return OTHERWISE, dict(metadata)
        for name, fernet in self.named.items():
            try:
                secret = json.loads(fernet.decrypt(str(metadata[SEALED])))
            except InvalidToken:
                continue
            whole = {**{key: value for key, value in metadata.items() if key != SEALED}, **secret}
            return name if secret.keys() == whole.keys() & set(self.fields) else OTHERWISE, whole
        return UNKNOWN, {**metadata, SEALED: f"no key of {VARIABLE} decrypts it"}


_WALK = text("""
    select id, metadata from document
    where id > :after and (jsonb_exists(metadata, :sealed) or jsonb_exists_any(metadata, :fields))
    order by id limit :most""")
_REPLACE = text("""
    with fresh as (
        select d.id, r.new from jsonb_to_recordset(cast(:rows as jsonb)) as r(id uuid, was jsonb, new jsonb)
        join document d on d.id = r.id and d.metadata = r.was order by d.id for update of d)
    update document d set metadata = fresh.new from fresh where d.id = fresh.id""")


def count_by_key(
    connection: Connection, keyring: Keyring, after: UUID, *, rotate: bool = False
) -> tuple[UUID | None, Counter[str]]:
    """The next batch of a tenant's documents after the id `after`, counted by key; with the last id, None at the end.

    With `rotate`, metadata that can be decrypted are encrypted again with the first key and the configured fields;
    `rotated` counts changed rows. A row that changed meanwhile is left alone.
    """
    values = {"after": after, "sealed": SEALED, "fields": list(keyring.fields), "most": BATCH}
    rows = [(row, *keyring.opened(row.metadata)) for row in connection.execute(_WALK, values)]
    counts = Counter(name for _, name, _ in rows)
    if rotate:
        old = [one for one in rows if one[1] not in (UNKNOWN, next(iter(keyring.named), ""))]
        new = [{"id": str(row.id), "was": row.metadata, "new": keyring.seal(whole)} for row, _, whole in old]
        counts["rotated"] = connection.execute(_REPLACE, {"rows": json.dumps(new)}).rowcount
    return rows[-1][0].id if len(rows) == BATCH else None, counts
