"""Redaction of secrets and personal data in text, before it is stored."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain

REDACTED = "REDACTED"
"""Replacement within addresses, where brackets would end a link; elsewhere it names the kind: `[secret]`, `[email]`."""

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
    rf"((?:\?|&(?<!&&)(?:amp;)?|\#|\\u0026)(?=[\w\\\[\]-]{{2,160}}+=){_NAMES}\\?=|;(?:password|pwd|passwd|(?:sharedaccess|account)key)=)"
    r"""(?:[^&\s"'<>#;)\]`\\]|;(?![\w.-]+=)|\\(?!u0026|["'n]))+""",
    re.IGNORECASE | re.ASCII,
)
_ENCODED = re.compile(
    # An address inside an address: `next=https%3A%2F%2Fhost%2F%3Ftoken%3Dsecret%26page%3D2`.
    rf"(%(?:25)*(?:3f|26|23){_NAMES}%(?:25)*3d)"
    r"""(?:(?!%(?:25)*(?:26|23))[^&\s"'<>#;)\]`\\])+""",
    re.IGNORECASE | re.ASCII,
)
_QUERY_WORDS = tuple(
    f"{end}="
    for end in (
        "token", "secret", "word", "wd", "phrase", "jwt", "signature", "credential", "credentials", "key", "keyid",
        "code", "sig", "auth", "authorization", "pass", "]", "\\",
    )
)  # fmt: skip
"""Ends of the names before a secret value, for a quick test."""
_SIGNED = re.compile(r"(SharedAccessSignature[= ])(?:s[rvgep]|sig|se|skn|st)=[^\s\"'<>;`]+", re.IGNORECASE)
_LOGIN = re.compile(r"(:\\?/\\?/)([^\s/?#\"'<>`]+)@")
_PLACEHOLDER = re.compile(r"(?i:password|passwd|secret)|[A-Z_]+|\{.*\}|\$\{?\w+\}?|\*+|\.{3}", re.ASCII)
_TOKEN_AS_NAME = re.compile(r"(?=[^\d]*\d)[\w.~-]{20,}", re.ASCII)


_PEM = re.compile(
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
    # Up to the end mark, else as far as base64 goes.
    r"(?:(?:(?!-----)[\s\S]){0,20000}+-----END [A-Z ]{0,40}-----|(?:\s{0,4}[A-Za-z0-9+/=]{40,99}+){1,999}+)"
)
_TOKEN = re.compile(
    r"""(?<![\w-])(?=[\w.~/-]{16})(?:
    gh[pousr]_[A-Za-z0-9]{30,255}|github_pat_\w{50,255}             # GitHub
    |gl(?:pat|dt|rt|cbt|ptt|ft|soat|imt|agent)-[\w-]{20,255}        # GitLab
    |A(?:KIA|SIA|BIA|CCA)[A-Z2-7]{16}                               # AWS
    |xox[abeoprs]-[\w-]{10,255}|xapp-\d-[\w-]{10,255}               # Slack
    |hooks\.slack\.com/services/[\w/]{20,99}
    |AIza[\w-]{35}|GOCSPX-[\w-]{20,40}|ya29\.[\w-]{20,999}          # Google
    |\w{3}[78]Q~[\w.~-]{31,40}                                      # Azure
    |[A-Za-z0-9]{76}AZDO[A-Za-z0-9]{4}                              # Azure DevOps
    |(?:[rs]k_(?:live|test)|whsec)_[A-Za-z0-9]{16,255}              # Stripe
    |npm_[A-Za-z0-9]{36}|pypi-[\w-]{50,999}                         # npm, PyPI
    |eyJ[\w-]{8,9999}\.eyJ[\w-]{8,9999}\.[\w-]{8,9999}              # JWT
    )(?![\w-])""",
    re.VERBOSE | re.ASCII,
)
_TOKEN_WORDS = (
    "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "gldt-", "glrt-", "glcbt-", "glptt-", "glft-",
    "glsoat-", "glimt-", "glagent-", "akia", "asia", "abia", "acca", "xox", "xapp-", "hooks.slack", "aiza", "gocspx-",
    "ya29.", "7q~", "8q~", "azdo", "k_live_", "k_test_", "whsec_", "npm_", "pypi-", "eyj",
)  # fmt: skip
_WORDS = (
    "token", "secret", "passw", "pwd", "passphrase", "jwt", "signature", "credential", "_key", "-key", "\\key",
    "apikey", "accesskey", "accountkey", "privatekey", "subscriptionkey", "authorization", "bearer",
    *(f"pat{sign}" for sign in ":=\"' \t\r\n"), *(f"basic{sign}" for sign in " \t\r\n"),
)  # fmt: skip
_ASSIGNED = re.compile(
    rf"""(?=[tpsjcab])((?:{_STRONG})\\?["']?\s{{0,3}}(?::=|=>|[:=])\s{{0,3}}["']?"""
    r"""|authorization["']?\s{0,3}[:=]\s{0,3}["']?(?:[a-z]{2,12}\s{1,3})?"""
    r"""|(?<![a-z])pat["']?\s{0,3}[:=]\s{0,3}["']?|\b(?:bearer|basic)\s{1,3}(?=[\w.~+/-]{16}))"""
    r"""([^\s"'`<>,;(){}\[\]|&$%*\\]{6,}+)""",
    re.IGNORECASE | re.ASCII,
)
_PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+|\.{0,2}/\S*|\w+://\S*", re.ASCII)
"""An attribute, a file or an address: the place of a secret, not the secret."""
_EMAIL = re.compile(
    # No login of an address (`//git@host`, `git@host:path`), principal (`nn/host@REALM`) or version (`pkg@1.2.x`).
    r"(?=[\w.+%])(?<![\w.+/@%-])(?!git@)[\w.+%-][\w.+%'-]{0,63}+@(?!\d+x\.|v?\d+\.\d)"
    r"((?:[\w-]{1,63}+\.){1,8}[^\W\d_]{2,24}+)(?![\w@-]|\.\w|:[\w~/])"
)
_NOBODY = re.compile(
    r"(?:.*\.)?example\.\w+|.*\.(?:test|invalid|localhost|example|local|png|jpe?g|gif|svg|service)"
)
"""Hosts without mail, and endings of file names."""
_IBAN = re.compile(r"([A-Z](?<!\w.)[A-Z])\d\d(?: ?[A-Z0-9]){11,28}", re.ASCII)
_IBAN_LENGTHS = (
    "AD24AE23AL28AT20AZ28BA20BE16BG22BH22BR29BY28CH21CR22CY28CZ24DE22DK18DO28EE20EG29ES24FI18FO18FR27GB22GE22GI23GL18"
    "GR27GT28HR21HU28IE22IL23IQ23IS26IT27JO30KW30KZ20LB28LC32LI21LT20LU20LV21LY25MC27MD24ME22MK19MR27MT31MU30NL18NO15"
    "PK24PL28PS29PT25QA29RO24RS22SA24SC31SE24SI19SK24SM27ST25SV28TL23TN24TR26UA29VA22VG24XK20"
)
_CARD = re.compile(
    r"\d(?<![\w.+-].)(?:\d{12,18}|\d{3}([ -])\d{4}\1\d{4}\1\d{1,7}|\d{3}([ -])\d{6}\2\d{4,5})(?![\w-]|\.\d)",
    re.ASCII,
)
_ISSUER = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})|(?:5[1-5]|2[2-7])\d{14}|3[47]\d{13}|3(?:0[0-5]|[68]\d)\d{11}|(?:6011|64[4-9]\d|65\d\d)\d{12}"
    r"|35\d{14}|62\d{14,17}"
)
_PHONE = re.compile(
    r"""[\d(+](?<![\w.+/=%-].)(?:
    (?:(?<=\+)(?!\d{4}-\d\d)|(?<!\d[ ].)(?<=0)0(?=\d{1,3}[ /(-]))[1-9](?:(?![ ]\d{4}-\d\d)[ ./()-]{0,3}\d){7,14}
    |(?:(?<=1)[ .-]\(?[2-9]|(?<=\()[2-9]|(?<=[2-9]))\d\d(?:\)[ ]?|[.-])[2-9]\d\d[.-]\d{4}  # (415) 555-2671
    |(?<!\d[ ].)(?:(?<=0)|(?<=\()0)[1-9]\d{1,4}(?:\)[ ]?|[ ]?/[ ]?|[ ])(?!\d{4}-)\d{3,8}(?:[ -]\d{1,6}){0,3}
    |(?<!\d[ ].)(?<=0)[1-9](?:[ .]\d\d){4}  # 01 23 45 67 89
    )(?![\w-]|\.\d|[ ]?:\d)""",
    re.VERBOSE | re.ASCII,
)
_CALLED = ("tel", "phone", "mobil", "fax", "hotline")
_PHONE_BY_NAME = re.compile(
    r"""((?:(?<!\w)tel(?:efon|ephone)?|(?<!\w)mobile?|phone|fax|hotline)["']?
    (?:(?:\ (?:number|no|nr|is)){1,2}|(?=\ ?[.:=#]))\ ?[.:=#]{0,2}[ "']{0,3})
    (?=\(?(?:[ ()/.-]{0,3}\d){7})(?!\d{4}-\d\d-)\(?\d{2}[\d ()/.-]{3,18}\d(?![\w-])""",
    re.VERBOSE | re.ASCII | re.IGNORECASE,
)
_IP = re.compile(
    r"(?=\d)(?<![\w.-])(?<!(?<!/)/)\d{1,3}(?:\.\d{1,3}){3}(?!\w|[.-]\w)"
    r"|(?=[\da-f:]{7})(?<![\w.:])(?:[\da-f]{0,4}:){2,7}[\da-f]{1,4}(?![\w:])",
    re.ASCII | re.IGNORECASE,
)
_VERSION = re.compile(r"(?:v|version|release|build|section|chapter|§)\W{0,3}$", re.IGNORECASE)
_NO_HOST = re.compile(r"0\.|127\.|192\.0\.2\.|198\.51\.100\.|203\.0\.113\.|255\.|2001:0?db8:", re.IGNORECASE)
"""Loopback and documentation networks, and masks."""
SHORTEST_IP = 7


def _reachable(mail: re.Match[str]) -> bool:
    return not _NOBODY.fullmatch(mail[1].lower())


def _is_card(match: re.Match[str]) -> bool:
    digits = re.sub(r"\D", "", match[0])
    doubled = [int(digit) * (1 + n % 2) for n, digit in enumerate(reversed(digits))]
    return bool(_ISSUER.fullmatch(digits)) and sum(n // 10 + n % 10 for n in doubled) % 10 == 0


def _is_ip(match: re.Match[str]) -> bool:
    before = match.string[max(0, match.start() - 12) : match.start()]
    if len(match[0]) < SHORTEST_IP or _NO_HOST.match(match[0]) or _VERSION.search(before):
        return False
    with suppress(OSError):
        return bool(socket.inet_pton(socket.AF_INET6 if ":" in match[0] else socket.AF_INET, match[0]))
    return False


def _iban(match: re.Match[str]) -> str:
    """Redacts a valid IBAN, cut at its country's length; the words after it stay."""
    length = int(_IBAN_LENGTHS.partition(match[1])[2][:2] or 99)
    number = re.match(rf"(?:\w ?){{{length - 1}}}\w(?!\w)", match[0])
    digits = number[0].replace(" ", "") if number else ""
    if not number or int("".join(str(int(c, 36)) for c in digits[4:] + digits[:4])) % 97 != 1:
        return match[0]
    return "[iban]" + match[0][number.end() :]


def _assigned(match: re.Match[str]) -> str:
    """Redacts an assigned secret; a variable, a call or a path stays."""
    name, value = match.groups()
    after = match.string[match.end() : match.end() + 1]
    letters = any(map(str.isalpha, value)) or "pass" in name.lower()
    real = letters and any(map(str.isdigit, value)) and not (after and after in "([{$%*")
    return f"{name}[secret]" if real and not _PATH.fullmatch(value) else match[0]


def _login(match: re.Match[str]) -> str:
    """Redacts a login with a password or a token; a name alone (`ssh://git@host`) and `USER:PASSWORD` stay."""
    slashes, login = match.groups()
    _, colon, password = login.partition(":")
    if (colon and password and not _PLACEHOLDER.fullmatch(password)) or _TOKEN_AS_NAME.fullmatch(login):
        return f"{slashes}{REDACTED}@"
    return match.group()


def _if(real: Callable[[re.Match[str]], bool], mark: str) -> Change:
    return lambda match: mark if real(match) else match[0]


Change = str | Callable[[re.Match[str]], str]
Rule = tuple[Sequence[str], re.Pattern[str], Change]
"""Words in lower case of which a text must contain one, the pattern, and its replacement."""
SECRETS: Sequence[Rule] = (
    (("://", r":\/", r":/\/"), _LOGIN, _login),
    (("sharedaccesssignature",), _SIGNED, rf"\1{REDACTED}"),
    (_QUERY_WORDS, _QUERY, rf"\1{REDACTED}"),
    (("%",), _ENCODED, rf"\1{REDACTED}"),
    (("private key",), _PEM, "[secret]"),
    (_TOKEN_WORDS, _TOKEN, "[secret]"),
    (_WORDS, _ASSIGNED, _assigned),
)
PERSONAL: Mapping[str, Sequence[Rule]] = {
    "email": [(("@",), _EMAIL, _if(_reachable, "[email]"))],
    "iban": [(("",), _IBAN, _iban)],
    "card": [(("",), _CARD, _if(_is_card, "[card]"))],
    "phone": [(("",), _PHONE, "[phone]"), (_CALLED, _PHONE_BY_NAME, r"\1[phone]")],
    "ip": [(("",), _IP, _if(_is_ip, "[ip]"))],
}


def redact(text: str, kinds: Collection[str] = (), names: Iterable[str] = ()) -> str:
    """The text without secrets and without these kinds of personal data; idempotent.

    Secrets are logins before a host, values of keys such as `token` in addresses, settings and headers, private
    keys and tokens of common services. Takes time linear in the length.

    Args:
        text: any.
        kinds: of PERSONAL.
        names: words that are replaced by `[name]` where they stand alone.
    """
    has = text.lower().__contains__
    for clues, pattern, change in chain(
        SECRETS, *(rules for kind, rules in PERSONAL.items() if kind in kinds)
    ):
        if any(map(has, clues)):
            text = pattern.sub(change, text)
    names_pattern = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.sub(rf"(?<!\w)(?:{names_pattern})(?!\w)", "[name]", text) if names_pattern else text
