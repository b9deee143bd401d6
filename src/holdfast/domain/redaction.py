"""Redaction: what must not be told, said in one place.

Two sorts of things are taken out: what stands under a name that says what it is (`password`, `Authorization`, …), and
what looks like a secret wherever it stands (bearer tokens, passwords in URLs, card numbers, people's addresses).
Redaction finds what it knows. So it is the second wall and never the first: logs, failure messages, events and metrics
hold no payloads and no texts of exceptions at all (ADR 9).

Every pattern is bounded, so the time taken grows with the length of a text and no faster, whatever the text is.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

REDACTED = "[redacted]"
KEYS = (
    "password", "passwd", "passphrase", "pwd", "secret", "token", "authorization", "cookie", "credential", "api key",
    "access key", "private key", "signature", "card number", "credit card", "cvv", "cvc", "iban", "ssn",
)  # fmt: skip
"""A name that holds one of these, in whatever case and however its words are joined, is the name of a secret."""
_DEEPEST = 50
_JOINTS = re.compile(r"[^a-z0-9]")
_SECRETS = (
    (re.compile(r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[^-]{0,8000}(?:-----END [A-Z ]{0,30}-----)?"), REDACTED),
    (
        re.compile(r"(\b[a-z][a-z0-9+.-]{0,30}://[^\s/:@'\"]{0,100}):[^\s'\"]{0,400}@", re.IGNORECASE),
        rf"\1:{REDACTED}@",
    ),
    (re.compile(r"\b(Bearer|Basic|Digest)\s{1,3}[A-Za-z0-9._~+/=-]{6,2000}", re.IGNORECASE), rf"\1 {REDACTED}"),
    (re.compile(r"\beyJ[\w-]{8,2000}\.[\w-]{4,4000}(?:\.[\w-]{0,1000})?"), REDACTED),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), REDACTED),
    (re.compile(r"\b(?:gh[pousr]_|xox[abprs]-|sk[-_]|pk[-_]|rk[-_]|hf_)[\w-]{16,500}"), REDACTED),
)
_EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63}){1,8}", re.IGNORECASE)
_CARD = re.compile(r"(?<![\w.-])[2-6](?:[ -]?\d){12,18}(?![\w-])")
_PARAMETER = re.compile(r"((?:password|passwd|secret|token)=)[^&]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Redaction:
    """What to take out: what is known here, and what the user adds to it."""

    keys: tuple[str, ...] = ()
    """Further names of secrets; part of a name is enough."""
    patterns: tuple[str, ...] = ()
    """Further regular expressions of what to take out."""
    emails: bool = True
    """Whether people's addresses are taken out."""

    def text(self, text: str) -> str:
        """Give a text without what looks like a secret."""
        for pattern, instead in _SECRETS:
            text = pattern.sub(instead, text)
        text = _assignments(self.keys).sub(rf"\1{REDACTED}", text)
        text = _CARD.sub(_without_card, text)
        if self.emails and "@" in text:
            text = _EMAIL.sub(REDACTED, text)
        for own in self.patterns:
            text = re.sub(own, REDACTED, text)
        return text

    def value(self, value: Any, depth: int = 0) -> Any:
        """Give a JSON value without what stands under the name of a secret, or looks like one."""
        if depth > _DEEPEST:
            return REDACTED
        match value:
            case str():
                return self.text(value)
            case Mapping():
                return {
                    self.text(str(key)): REDACTED if self.is_secret(str(key)) else self.value(each, depth + 1)
                    for key, each in value.items()
                }
            case list() | tuple():
                return [self.value(each, depth + 1) for each in value]
            case bool() | None:
                return value
            case int() | float():
                return value if self.text(str(value)) == str(value) else REDACTED
            case _:
                return REDACTED

    def is_secret(self, name: str) -> bool:
        """Tell whether a name says that what it names is a secret."""
        letters = _letters(name)
        return any(_letters(key) in letters for key in (*KEYS, *self.keys))


def without_password(url: str) -> str:
    """Show a URL without its password."""
    scheme, separator, rest = url.partition("://")
    person, at, place = rest.rpartition("@")
    if at:
        rest = f"{person.partition(':')[0]}:***@{place}" if ":" in person else f"{person}@{place}"
    return scheme + separator + _PARAMETER.sub(r"\1***", rest)


def without_person(url: str) -> str:
    """Show a URL without whoever it names, since it is not known what of that is a password."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}***@{rest.rpartition('@')[2]}" if "@" in rest else url


def _letters(name: str) -> str:
    return _JOINTS.sub("", name.lower())


@lru_cache(maxsize=16)
def _assignments(keys: tuple[str, ...]) -> re.Pattern[str]:
    """Give the pattern of a secret's name with what it is said to be: `token=…`, `"api_key": "…"`, `Cookie: …`."""
    names = "|".join("[-_. ]?".join(map(re.escape, key.lower().split())) for key in (*KEYS, *keys))
    value = r"""(?:"[^"\n]{0,2000}"?|'[^'\n]{0,2000}'?|[^\s,;&)}\]'"]{1,2000})"""
    return re.compile(
        rf"""((?:{names})[\w.-]{{0,40}}\\?["']?\s{{0,3}}[=:]\s{{0,3}}\\?)(?!\[redacted\]){value}""", re.IGNORECASE
    )


def _without_card(found: re.Match[str]) -> str:
    digits = [int(each) for each in found[0] if each.isdigit()]
    total = sum(digits[-1::-2]) + sum(sum(divmod(2 * each, 10)) for each in digits[-2::-2])
    return found[0] if total % 10 else REDACTED
