"""Secrets that are none: right in form, made here, so that no scanner takes this file for a leak."""

from __future__ import annotations

B64 = "aB3dE5gH7jK9mN1pQ2rS4tU6vW8xY0zAcEfGhIjKlMnOpQrStUvWxYzAbCdEfGhIjKlMnOpQrStUvWxYz0123456789"
PEM_BODY = "\n".join(f"MIIE{B64[place : place + 60]}" for place in range(12))
PEM = "-----BEGIN RSA PRIVATE " + f"KEY-----\n{PEM_BODY}\nQw==\n-----END RSA PRIVATE KEY-----\n"

# The id, what stays in sight, the secret itself.
SECRETS = [
    ("aws-access-key-id", "AKIA", "IOSFODNN7EXAMPLE"),
    ("aws-access-key-id", "ASIA", "IOSFODNN7EXAMPLE"),
    ("aws-secret-key", "aws_secret_access_key = ", B64[:38] + "/+"),
    ("aws-secret-key", '"SecretAccessKey": "', B64[:38] + "/+"),
    ("aws-secret-key", "AWS_SECRET_KEY=", B64[:40]),
    ("github-token", "ghp" + "_", B64[:36]),
    ("github-token", "gho" + "_", B64[:36]),
    ("github-token", "github" + "_pat_", B64[:22] + "_" + B64[:59]),
    ("gitlab-token", "glpat" + "-", B64[:20]),
    ("slack-token", "xoxb" + "-", "1234567890-1234567890-" + B64[:24]),
    ("slack-token", "xapp" + "-", "1-A0-1234567890-" + B64[:24]),
    ("google-api-key", "AIza", B64[:35]),
    ("api-key", "sk" + "-", B64[:48]),
    ("api-key", "sk" + "-ant-", "api03-" + B64[:60] + "-AA"),
    ("api-key", "sk" + "-proj-", B64[:60]),
    ("stripe-key", "sk" + "_live_", B64[:24]),
    ("stripe-key", "rk" + "_live_", B64[:24]),
    ("npm-token", "npm" + "_", B64[:36]),
    ("pypi-token", "pypi" + "-AgE", "IcHlwaS5vcmc" + B64[:80]),
    ("docker-token", "dckr" + "_pat_", B64[:27]),
    ("hugging-face-token", "hf" + "_", B64[:34]),
    ("vault-token", "hvs" + ".", B64[:40]),
    ("sendgrid-key", "SG" + ".", B64[:22] + "." + B64[:43]),
    ("age-secret-key", "AGE-SECRET-KEY" + "-1", "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L" * 2),
    ("jwt", "eyJhbGciOiJIUzI1NiJ9." + "eyJ", "zdWIiOiIxMjM0In0." + B64[:43]),
    ("azure-storage-key", "AccountKey=", B64[:86] + "=="),
    ("airlock-key", "alk" + "_", B64[:43]),
    ("url-password", "postgres://app:", "hunter2!"),
    ("url-password", "redis://:", "s3cret/"[:-1]),
    ("private-key", "-----BEGIN RSA PRIVATE " + "KEY-----", f"\n{PEM_BODY}\nQw==\n"),
    ("private-key", "-----BEGIN OPENSSH PRIVATE " + "KEY-----", "\\n" + PEM_BODY.replace("\n", "\\n") + "\\n"),
    (
        "private-key",
        "-----BEGIN EC PRIVATE " + "KEY-----",
        f"\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,AB12\n\n{PEM_BODY}\n",
    ),
]


def after(id_: str) -> str:
    """Return what follows such a secret."""
    return {"url-password": "@db.example:5432/x", "private-key": "-----END PRIVATE KEY-----"}.get(id_, " and so on")
