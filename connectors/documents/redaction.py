"""Passwords and tokens inside addresses, taken out of text before anything is stored."""

from __future__ import annotations

import re

REDACTED = "REDACTED"

# Words that mean a secret also at the end of a longer name: `private_token`, `X-Amz-Signature`, `clientSecret`.
_STRONG = (
    r"token|secret|password|passwd|pwd|passphrase|jwt|signature|credentials?|api\\?[_-]?key"
    r"|(?:access|account|secret|private|subscription|sharedaccess)\\?[_-]?key(?:id)?"
)
_BEFORE = r"(?:[a-z0-9]{1,30}\\?[_-]){0,4}"
_CAMEL = r"(?:access|refresh|auth|id|api|private|oauth|client|app|user|session|security|bearer|sas|aws)?"
# Words that mean a secret only when they stand alone: a `sort_key` or `country_code` is none.
_ALONE = r"key|code|sig|auth|authorization|pass"
_NAMES = rf"(?:\w{{1,30}}\[)?(?:{_BEFORE}{_CAMEL}(?:{_STRONG})|{_ALONE})\]?"

_QUERY = re.compile(
    # A doubled `&` is an operator of a program. A `;` parts the settings of a connection string.
    rf"((?:\?|(?<!&)&(?:amp;)?|\#|\\u0026){_NAMES}\\?=|;(?:password|pwd|passwd|(?:sharedaccess|account)key)=)"
    r"""(?:[^&\s"'<>#;)\]`\\]|;(?![\w.-]+=)|\\(?!u0026|["'n]))+""",
    re.IGNORECASE | re.ASCII,
)
_ENCODED = re.compile(
    # An address inside an address: `next=https%3A%2F%2Fhost%2F%3Ftoken%3Dsecret%26page%3D2`.
    rf"(%(?:25)*(?:3f|26|23){_NAMES}%(?:25)*3d)"
    r"""(?:(?!%(?:25)*(?:26|23))[^&\s"'<>#;)\]`\\])+""",
    re.IGNORECASE | re.ASCII,
)
_SIGNED = re.compile(r"(SharedAccessSignature[= ])(?:s[rvgep]|sig|se|skn|st)=[^\s\"'<>;`]+", re.IGNORECASE)
_LOGIN = re.compile(r"(:\\?/\\?/)([^\s/?#\"'<>`]+)@")
_TOKEN_AS_NAME = re.compile(r"(?=[^\d]*\d)[\w.~-]{20,}", re.ASCII)


def redact(text: str) -> str:
    """The text with `REDACTED` for each secret in an address; all else stays, twice changes nothing more.

    Known are the login before a host and the values of telling names in a query, a fragment, a form or a
    connection string. Takes time linear in the length.
    """
    text = _LOGIN.sub(_login, text)
    text = _SIGNED.sub(rf"\1{REDACTED}", text)
    text = _QUERY.sub(rf"\1{REDACTED}", text)
    return _ENCODED.sub(rf"\1{REDACTED}", text) if "%" in text else text


def _login(found: re.Match[str]) -> str:
    """A name alone is kept (`ssh://git@host`), unless it is a token in disguise."""
    slashes, login = found.groups()
    _, colon, password = login.partition(":")
    if (colon and password) or _TOKEN_AS_NAME.fullmatch(login):
        return f"{slashes}{REDACTED}@"
    return found.group()
