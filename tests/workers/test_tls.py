"""PostgreSQL and Valkey over TLS: who they are is proved, or nothing is sent to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from pipeline.errors import StoreRefused, StoreUnavailable
from tests.conftest import Addresses
from tests.fakes.tls_server import Authority, TlsServer
from tests.workers.installed import installed
from workers import runtime as runtimes
from workers.app.doctor import server_checks
from workers.app.enrichment.messaging import JobPublisher
from workers.local import embedded
from workers.local.embedded.locating import ping
from workers.queue import broker
from workers.queue.celeryconfig import celery_settings
from workers.remote_actions import receive
from workers.runtime import Runtime
from workers.settings.queue import QueueSettings

CONFIG = "rag: {tenant: acme, project: app, embedding: {provider: hashing, dimensions: 64}}"


class Tls:
    """The two servers over TLS, as `127.0.0.1`, signed by `ours`."""

    def __init__(self, ours: Authority, strange: Authority, postgres: TlsServer, valkey: TlsServer) -> None:
        self.ours, self.strange = ours, strange
        self.postgres, self.valkey = postgres, valkey

    def database(self, url: str, host: str = "127.0.0.1", *, ca: Authority | None = None) -> str:
        there = f"{url.rsplit('@', 1)[0]}@{host}:{self.postgres.port}{urlsplit(url).path}"
        return f"{there}?sslmode=verify-full&sslrootcert={(ca or self.ours).file}"

    def broker(
        self, url: str, host: str = "127.0.0.1", *, ca: Authority | None = None, options: str = ""
    ) -> str:
        # A database of its own: other tests leave messages in the first one.
        there = f"rediss:{url.split(':', 1)[1].rsplit('@', 1)[0]}@{host}:{self.valkey.port}/9"
        return f"{there}{options or f'?ssl_ca_certs={(ca or self.ours).file}'}"


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory, servers: embedded.Servers) -> Iterator[Tls]:
    folder = tmp_path_factory.mktemp("authorities")
    ours, strange = Authority(folder, "ours"), Authority(folder, "strange")
    ports = [urlsplit(url).port or 0 for url in (servers.database_url, servers.broker_url)]
    context = ours.context("127.0.0.1")
    with TlsServer(ports[0], context, postgres=True) as postgres, TlsServer(ports[1], context) as valkey:
        yield Tls(ours, strange, postgres, valkey)


@pytest.fixture
def runtime(tmp_path: Path, addresses: Addresses, servers: embedded.Servers, tls: Tls) -> Iterator[Runtime]:
    with installed(tmp_path, addresses, servers, CONFIG) as plain:
        where = runtimes.Addresses(
            database=tls.database(addresses.app),
            control=tls.database(addresses.control),
            admin=tls.database(addresses.admin),
            broker=tls.broker(servers.broker_url),
        )
        made = Runtime(plain.settings, where)
        yield made
        made.close()


def test_everything_works_when_both_prove_who_they_are(runtime: Runtime, tls: Tls) -> None:
    before = tls.postgres.served, tls.valkey.served
    for check in (
        server_checks.database,
        server_checks.schema,
        server_checks.roles,
        server_checks.message_broker,
    ):
        assert check(runtime).status == "ok", check(runtime)
    app = Celery(set_as_current=False)
    app.conf.update(celery_settings(QueueSettings(), runtime.addresses.broker))
    app.send_task("larder.pump", queue="tls")
    publisher = JobPublisher(runtime.addresses.broker)
    assert publisher.publish(runtime.settings.tenant_id, runtime.settings.tenant_id, priority=0, task="none")
    publisher.close()
    assert broker.lengths(runtime.addresses.broker, ["tls", "enrich"]) == {"tls": 1, "enrich": 1}
    with broker.client_of(runtime.addresses.broker) as client:
        client.delete("tls", "enrich")
    assert tls.postgres.served > before[0]
    assert tls.valkey.served > before[1]


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # Celery's, for results
@pytest.mark.parametrize("option", ["", "&ssl_cert_reqs=required", "&ssl_cert_reqs=CERT_REQUIRED"])
def test_an_app_without_this_package_is_answered_and_its_spelling_is_read(
    runtime: Runtime, option: str
) -> None:
    """Celery wants `ssl_cert_reqs` in its address, and knows both spellings; one address serves app and workers."""
    valkey = f"{runtime.addresses.broker}{option}"
    made = Runtime(runtime.settings, replace(runtime.addresses, broker=valkey))
    receive(made, "larder.enrich", "asked", [], {"pbi": {"title": "Tides"}})
    with broker.client_of(valkey) as client:
        assert "rag.queue.answerApps" in client.get("celery-task-meta-asked").decode()
        client.delete("celery-task-meta-asked")
    url = f"{runtime.addresses.broker}{option or '&ssl_cert_reqs=required'}"
    app = Celery(broker=url, backend=url, set_as_current=False)
    assert app.send_task("larder.ask", queue="tls").result is None
    assert broker.connect_problem(url) == ""
    with broker.client_of(url) as client:
        assert client.delete("tls") == 1


@pytest.mark.parametrize(
    ("host", "strange", "said"),
    [("127.0.0.1", True, "certificate verify failed"), ("localhost", False, 'host name "localhost"')],
)
def test_a_database_that_proves_nothing_is_refused(
    addresses: Addresses, tls: Tls, host: str, strange: bool, said: str
) -> None:
    with pytest.raises(StoreRefused) as refused:
        ping(tls.database(addresses.app, host, ca=tls.strange if strange else None))
    assert refused.value.message.startswith("TLS with the database fails: ")
    assert said in refused.value.message
    assert "sslrootcert" in refused.value.fix


def test_a_proxy_with_tls_whose_database_is_away_is_no_matter_of_tls(tls: Tls, addresses: Addresses) -> None:
    with TlsServer(1, tls.ours.context("127.0.0.1"), postgres=True) as alone:
        url = tls.database(addresses.app).replace(f":{tls.postgres.port}/", f":{alone.port}/")
        with pytest.raises(
            StoreUnavailable, match="what listens at its address closes the connection"
        ) as away:
            ping(url)
    assert not isinstance(away.value, StoreRefused)


@pytest.mark.parametrize(
    ("host", "options", "why"),
    [
        ("127.0.0.1", "?ssl_ca_certs={strange}", "has a certificate that nobody we trust has signed"),
        ("127.0.0.1", "?ssl_cert_reqs=required", "has a certificate that nobody we trust has signed"),
        ("localhost", "?ssl_ca_certs={ours}", "has a certificate for another host name"),
        ("127.0.0.1", "?ssl_ca_certs=/nowhere.pem", "is to be trusted by a file that is not there"),
    ],
)
def test_a_broker_that_proves_nothing_is_refused(
    servers: embedded.Servers, tls: Tls, host: str, options: str, why: str
) -> None:
    url = tls.broker(
        servers.broker_url, host, options=options.format(strange=tls.strange.file, ours=tls.ours.file)
    )
    assert broker.connect_problem(url) == why
    assert broker.advice_on(why)


def test_workers_trust_no_certificate_that_is_not_mentioned(servers: embedded.Servers, tls: Tls) -> None:
    """An address with nothing but rediss:// would otherwise be served by anybody."""
    url = tls.broker(servers.broker_url, options="?")
    before = tls.valkey.served
    app = Celery(set_as_current=False)
    app.conf.update(celery_settings(QueueSettings(), url, send_only=True))
    with (
        pytest.raises(OperationalError, match="CERTIFICATE_VERIFY_FAILED"),
        app.connection(connect_timeout=3) as connection,
    ):
        connection.ensure_connection(max_retries=1, interval_start=0)
    publisher = JobPublisher(url)
    assert not publisher.publish(uuid4(), uuid4(), priority=0)
    publisher.close()
    assert tls.valkey.served == before


def test_what_to_do_about_one_without_tls_is_told(servers: embedded.Servers) -> None:
    """It waits for the end of what it takes for a command."""
    why = broker.connect_problem(f"rediss:{servers.broker_url.split(':', 1)[1]}")
    assert "write redis:// instead of rediss://" in broker.advice_on(why)
