"""Names and ids of tenants and projects."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigurationError
from pipeline.ledger import ALL, project_id, tenant_id, visible_projects

NAMES = st.text().filter(lambda text: text.strip() not in ("", "default", "shared"))


@given(st.uuids())
def test_an_id_stays_what_it_is(value: UUID) -> None:
    tenant = tenant_id("acme")
    for text in (str(value), str(value).upper(), f" {value} "):
        assert tenant_id(text) == value
        assert project_id(tenant, text) == value


def test_names_have_the_same_id_for_ever() -> None:
    assert tenant_id("default") == UUID("b2496413-6592-5635-916c-2c34ef1650e3")
    assert project_id(tenant_id("default"), "default") == UUID("7076bb31-50dd-5363-b746-0adf239c5be7")


@given(NAMES, NAMES)
def test_different_names_have_different_ids(one: str, other: str) -> None:
    tenant = tenant_id("acme")
    assert (tenant_id(one) == tenant_id(other)) == (one.strip() == other.strip())
    assert (project_id(tenant, one) == project_id(tenant, other)) == (one.strip() == other.strip())


@given(NAMES)
def test_a_project_belongs_to_its_tenant(name: str) -> None:
    ids = {project_id(tenant_id("a"), name), project_id(tenant_id("b"), name), tenant_id("a"), tenant_id("b")}
    assert len(ids) == 4


def test_a_name_of_hexadecimal_digits_is_a_name() -> None:
    digits = "0123456789abcdef0123456789abcdef"
    assert tenant_id(digits) != UUID(digits)


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_an_empty_text_is_refused_with_its_word(text: str) -> None:
    with pytest.raises(ConfigurationError, match="the tenant is empty"):
        tenant_id(text)
    with pytest.raises(ConfigurationError, match="the project is empty"):
        project_id(tenant_id("a"), text)


def test_a_request_looks_into_its_own_project_what_is_shared_and_what_it_names() -> None:
    tenant = tenant_id("a")
    notes, billing, shared = (project_id(tenant, name) for name in ("shop", "billing", "default"))
    assert project_id(tenant, " shared ") == shared
    assert tenant_id("shared") != tenant_id("default")
    assert visible_projects(tenant, notes) == tuple(sorted((notes, shared)))
    assert visible_projects(tenant, shared) == (shared,)
    assert visible_projects(tenant, notes, ["billing", "shop", str(shared)]) == tuple(
        sorted((notes, billing, shared))
    )
    assert visible_projects(tenant, notes, ["billing", "*"]) == ALL


def test_half_a_letter_is_a_name_too() -> None:
    assert project_id(tenant_id("a"), "x\ud83d") != project_id(tenant_id("a"), "x")
