"""TLS in front of a real server on loopback, with certificates made for a test: the embedded servers speak none."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import ssl
import threading
import weakref
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

POSTGRES_ASKS = bytes.fromhex("0000000804d2162f")
"""How a client of PostgreSQL asks for TLS before anything else."""


class Authority:
    """Signs certificates; `file` holds its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._folder = folder
        self.file = folder / f"{name}.pem"
        made = self._begun(self._name, self._key).add_extension(
            x509.BasicConstraints(True, None), critical=True
        )
        signed = made.sign(self._key, hashes.SHA256())
        self.file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def _begun(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now, day = datetime.now(UTC), timedelta(days=1)
        names = x509.CertificateBuilder(
            issuer_name=self._name, subject_name=subject, public_key=key.public_key()
        )
        return (
            names.serial_number(x509.random_serial_number())
            .not_valid_before(now - day)
            .not_valid_after(now + day)
        )

    def context(self, host: str) -> ssl.SSLContext:
        """A server's, with a certificate for this name or address."""
        key = ec.generate_private_key(ec.SECP256R1())
        with contextlib.suppress(ValueError):
            return self._context(host, key, x509.IPAddress(ipaddress.ip_address(host)))
        return self._context(host, key, x509.DNSName(host))

    def _context(self, host: str, key: ec.EllipticCurvePrivateKey, name: x509.GeneralName) -> ssl.SSLContext:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        made = self._begun(subject, key).add_extension(x509.SubjectAlternativeName([name]), critical=False)
        signed = made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        plain = serialization.NoEncryption()
        form = serialization.PrivateFormat.PKCS8
        file = self._folder / f"{host}.server.pem"
        file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain) + signed)
        made_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made_context.load_cert_chain(file)
        return made_context


class TlsServer:
    """Passes on what comes over TLS to a server that speaks none; `port` is where it listens."""

    def __init__(self, port: int, context: ssl.SSLContext, *, postgres: bool = False) -> None:
        self._target, self._context, self._postgres = port, context, postgres
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._writers: weakref.WeakSet[asyncio.StreamWriter] = weakref.WeakSet()
        self.port = 0
        self.served = 0
        """Connections that got through the handshake."""

    def __enter__(self) -> Self:
        self._thread.start()
        server = asyncio.run_coroutine_threadsafe(self._opened(), self._loop).result(10)
        self.port = server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._closed(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _opened(self) -> asyncio.Server:
        tls = None if self._postgres else self._context
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        return self._server

    async def _closed(self) -> None:
        """Listen no more, and break off what is open: clients that keep connections would hold it for ever."""
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for writer in list(self._writers):
            writer.transport.abort()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(OSError, EOFError):
            if self._postgres:
                if await reader.readexactly(len(POSTGRES_ASKS)) != POSTGRES_ASKS:
                    return writer.close()
                writer.write(b"S")
                await writer.start_tls(self._context)
            self.served += 1
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.add(server_writer)
            await asyncio.gather(self._pass(reader, server_writer), self._pass(server_reader, writer))
        return writer.close()

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await source.read(65536):
                sink.write(piece)
                await sink.drain()
        sink.close()
