"""Addresses of services: never a cloud's own, no key shown, and a word where one travels readable."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from workers.settings import Settings
from workers.settings.rendering import effective, show

Loaded = Callable[..., Settings]

METADATA = [
    "http://169.254.169.254/latest",
    "http://169.254.170.2",
    "http://2852039166",
    "http://0xA9FEA9FE:80/v1",
    "http://169.254.43518",
    "http://[::ffff:169.254.169.254]",
    "http://[fe80::1]",
    "http://[fd00:ec2::254]",
    "http://[::169.254.169.254]",
    "http://[64:ff9b::a9fe:a9fe]",
    "http://metadata.google.internal./computeMetadata",
    "http://METADATA/x",
    "http://100.100.100.200",
    "http://168.63.129.16",
]


@pytest.mark.parametrize("address", METADATA)
def test_no_service_is_asked_at_the_address_where_clouds_hand_out_keys(
    lines: Callable[[str], list[str]], address: str
) -> None:
    for keys in (
        f"  embedding: {{provider: ollama, baseUrl: '{address}'}}",
        f"  sources: [{{name: a, type: confluence, token: t, baseUrl: '{address}'}}]",
        f"  sources: [{{name: a, type: azure_devops, pat: t, projects: [p], organization: '{address}'}}]",
    ):
        (said,) = lines(f"rag:\n{keys}\n")
        assert "hands out the keys of a cloud's machine" in said


@pytest.mark.parametrize(
    "address", [r"https://evil.org\.example.com", "https://a.example.com/x y", "https://a\\tb.org"]
)
def test_an_address_that_programs_read_in_several_ways_is_refused(
    lines: Callable[[str], list[str]], address: str
) -> None:
    """What connects takes the host before a backslash, and what looks at `security.hosts` all of it."""
    for keys in (
        f"embedding: {{provider: ollama, baseUrl: {json.dumps(address)}}}",
        f"sources: [{{name: a, type: confluence, token: t, baseUrl: {json.dumps(address)}}}]",
    ):
        (said,) = lines(f"rag:\n  security: {{hosts: ['*.example.com']}}\n  {keys}\n")
        assert "not all programs read one to the same host" in said


def test_only_hosts_that_are_named_are_asked(lines: Callable[[str], list[str]], loaded: Loaded) -> None:
    text = """
rag:
  security: {hosts: ['*.Example.com', localhost]}
  auth: {algorithm: RS256, jwksUrl: 'https://keys.%s/k'}
  embedding: {provider: %s, apiKey: k, model: m, dimensions: 8, previous: {provider: ollama, model: m, dimensions: 8}}
  sources:
    - {name: a, type: confluence, token: t, baseUrl: 'https://WIKI.%s./x'}
    - {name: b, type: markdown, paths: ['*.md'], baseUrl: 'https://git.elsewhere.org'}
"""
    assert loaded(text % ("example.com", "ollama", "example.com")).rag.security.hosts
    said = lines(text % ("example.org", "openai", "example.com.evil.org"))
    assert [line.split(": ", 1)[1] for line in said] == [
        "auth.jwksUrl: found 'keys.example.org', expected a host of security.hosts",
        "embedding: found 'api.openai.com', expected a host of security.hosts",
        "sources[0]: found 'wiki.example.com.evil.org', expected a host of security.hosts",
    ]


def test_a_key_in_an_address_is_shown_nowhere(loaded: Loaded, lines: Callable[[str], list[str]]) -> None:
    text = "rag:\n  embedding: {provider: ollama, model: m, dimensions: 8, baseUrl: 'https://h/v1?key=sesame&v=1'}\n"
    settings = loaded(text)
    assert settings.rag.embedding.base_url == "https://h/v1?key=sesame&v=1"
    assert effective(settings)["rag"]["embedding"]["baseUrl"] == "https://h/v1?key=***&v=***"
    assert "sesame" not in show(settings)
    (said,) = lines("rag:\n  embedding: {provider: ollama, baseUrl: 'ftp://h/v1?key=sesame'}\n")
    assert "'ftp://h/v1?key=***'" in said


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            "embedding: {provider: openai, apiKey: k, baseUrl: 'http://gpu:8000/v1', model: m, dimensions: 8}",
            "embedding",
        ),
        ("sources: [{name: a, type: confluence, token: t, baseUrl: 'http://wiki.example'}]", "sources[0]"),
        (
            "sources: [{name: a, type: azure_devops, pat: t, projects: [p], organization: 'http://tfs/x'}]",
            "sources[0]",
        ),
        ("sources: [{name: a, type: confluence, token: t, baseUrl: 'https://wiki.example'}]", ""),
        ("sources: [{name: a, type: confluence, token: t, baseUrl: 'http://127.0.0.1:8090'}]", ""),
        ("sources: [{name: a, type: confluence, token: t, baseUrl: 'http://[::1]:8090'}]", ""),
        ("sources: [{name: a, type: confluence, token: t, baseUrl: 'http://localhost'}]", ""),
        ("embedding: {provider: ollama, model: m, dimensions: 8, baseUrl: 'http://gpu:11434'}", ""),
    ],
)
def test_a_secret_that_travels_readable_is_warned_of(loaded: Loaded, keys: str, said: str) -> None:
    notes: Any = loaded(f"rag:\n  {keys}\n").notes
    if said:
        (note,) = notes
        assert note.startswith(f"larder.yaml:2: {said}: its secret is readable on the way to http://")
    else:
        assert notes == ()
