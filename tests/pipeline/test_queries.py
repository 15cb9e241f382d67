"""Words that mean the same."""

from __future__ import annotations

import pytest

from pipeline.search.question import Synonyms


@pytest.mark.req("001-022")
def test_synonyms_add_what_is_not_there_in_both_directions() -> None:
    known = Synonyms.from_groups([["k8s", "Kubernetes", "container platform"], ["alone"], ["pto", "leave"]])
    assert known.added_to("restart K8S now") == ("kubernetes", "container platform")
    assert known.added_to("our container-platform is down") == ("k8s", "kubernetes")
    assert known.added_to("kubernetes and k8s") == ("container platform",)
    assert known.added_to("k8sx, and a photo") == (), "whole words only"
    assert known.added_to("alone") == ()
    assert Synonyms.from_groups({"k8s": ["kubernetes"]}).added_to("kubernetes") == ("k8s",)
