"""Addresses lose their secrets and nothing else."""

from __future__ import annotations

import pytest

from sweeper.core.uris import remove_credentials, remove_passwords

KINDS = [
    ("http://bob:s3cret@host:5000", "http://host:5000"),
    ("http://s3cret@host", "http://host"),
    ("HTTPS://bob:s3cret@host/base/", "HTTPS://host/base/"),
    ("http://bob:p%40s3cret%2F@host", "http://host"),
    ("http://bob:p@s3cret@host/", "http://host/"),
    ("http://bob:p/s3cret@host:80/x", "http://host:80/x"),
    ("http://bob:p?s3cret#@host", "http://host"),
    ("http://bob:my s3cret@host", "http://host"),
    ('http://bob:"s3cret"@host', "http://host"),
    (" \thttp://bob:s3\ncret@host\n", "http://host"),
    ("http://bob:s3cret@[::1]:5000/x", "http://[::1]:5000/x"),
    ("http:/bob:s3cret@host", "http:/host"),
    ("//bob:s3cret@host", "//host"),
    ("bob:s3cret@host:5000", "host:5000"),
    (
        "postgresql+psycopg2://bob:s3cret@host/db?sslmode=require",
        "postgresql+psycopg2://host/db?sslmode=require",
    ),
    ("postgresql://host/db?user=bob&password=s3cret", "postgresql://host/db?user=bob"),
    ("postgresql:///db?host=/run&PassWord=s3cret", "postgresql:///db?host=/run"),
    ("mysql://host/db?ssl_key=k.pem&pass%77ord=s3cret", "mysql://host/db?ssl_key=k.pem"),
    ("mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BPWD%3Ds3cret", "mssql+pyodbc:///"),
    ("http://host/?access_token=s3cret;x=1", "http://host/?x=1"),
    ("http://host/#/runs?token=s3cret", "http://host/"),
    ("http://host/?X-Amz-Signature=s3cret", "http://host/"),
    ("databricks://s3cret:token@host", "databricks://host"),
]
HARMLESS = [
    *(
        "sqlite:///runs/mlflow.db",
        "sqlite:////srv/a@b/mlflow.db",
        "sqlite:///my runs/mlflow.db?mode=ro",
        "mlruns",
    ),
    *(
        "file:///srv/mlruns",
        "file:/srv/a:b@c",
        "file:a:b@c",
        "./my@runs",
        "databricks",
        "databricks://profile",
    ),
    *(
        "databricks-uc://profile:prefix",
        "http://host",
        "http://host:5000/",
        "http://[2001:db8::1]:5000/base",
    ),
    *("https://host/team@work?x=1&y=2#/experiments/1", "C:\\mlruns", "uc:profile", ""),
]


@pytest.mark.parametrize(
    ("uri", "expected"), KINDS, ids=[f"kind {number}" for number in range(len(KINDS))]
)
def test_an_address_loses_its_secrets(uri: str, expected: str) -> None:
    assert remove_credentials(uri) == expected
    assert remove_passwords(f"python -m sweeper tracking.uri={uri}, x", uri) == (
        f"python -m sweeper tracking.uri={expected}, x"
    )


@pytest.mark.parametrize("uri", HARMLESS)
def test_an_address_without_secrets_stays(uri: str) -> None:
    assert remove_credentials(uri) == uri
    assert remove_passwords(f"see {uri} there", uri) == f"see {uri} there"


def test_addresses_in_a_text_lose_their_secrets() -> None:
    text = (
        'no answer from "http://bob:s3cret@host/x?token=s3cret": (http://tok@h) mail bob@host, '
        "3 // 4"
    )
    assert (
        remove_passwords(text) == 'no answer from "http://host/x": (http://h) mail bob@host, 3 // 4'
    )
