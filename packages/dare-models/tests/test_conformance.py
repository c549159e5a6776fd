"""The shipped conformance kit, over every family."""

import pytest

from dare_models import family_names
from dare_models.testing import CHECKS, family_conformance


@pytest.mark.wheel
@pytest.mark.parametrize("family", family_names())
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_family(family, check):
    check(family)


def test_the_kit_runs_every_check():
    assert family_conformance("llada") == tuple(check.__name__ for check in CHECKS)
