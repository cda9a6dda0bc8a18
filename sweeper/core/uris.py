"""Addresses of stores without the passwords and tokens in them, so that they can be printed and
kept in files.
"""

import re
from urllib.parse import unquote_plus

# scheme, slashes, authority, path, query, fragment; as RFC 3986, appendix B, but any number of
# slashes.
_PARTS = re.compile(r"([A-Za-z][\w+.-]*:)?([/\\]*)([^/?#]*)([^?#]*)(\?[^#]*)?(#.*)?", re.DOTALL)
_URI_IN_TEXT = re.compile(r"(?:[A-Za-z][\w+.-]*:)?//[^\s\"'<>]+")
_LOCAL = ("file:", "sqlite")  # what follows is a path
_PORT = re.compile(r"[^:]*(:\d*)?|\[.*\](:\d*)?")
# Names of parameters; `odbc_connect` is a whole connection string.
_SECRET = re.compile(
    r"passw|passphrase|pwd|secret|token|api_?key|access_?key|credential|signature|authorization|odbc_connect|"
    r"^(pass|sig|auth|key)$",
    re.IGNORECASE,
)


def remove_credentials(uri: str) -> str:
    """Remove the user name, the password and every parameter that looks like a secret from an
    address.
    """
    uri = re.sub(r"[\t\r\n]", "", uri.strip())  # as urllib.parse does
    match = _PARTS.fullmatch(uri)
    assert match is not None  # every part may be empty
    scheme, slashes, authority, path, query, fragment = (part or "" for part in match.groups())
    names_host = len(slashes) < 3 and not scheme.lower().startswith(_LOCAL)
    # no scheme: user:password@host
    if names_host and not slashes and re.search(":.*@", scheme + authority):
        scheme = ""
    elif not slashes:
        names_host = False
    if names_host:
        # a password with a `/`, `?` or `#` of its own
        if "@" not in authority and not _PORT.fullmatch(authority):
            whole = "".join((authority, path, query, fragment))
            if "@" in whole:
                return remove_credentials(f"{scheme}{slashes}{whole.rpartition('@')[2]}")
        authority = authority.rpartition("@")[2]
    return f"{scheme}{slashes}{authority}{path}{_remove_secrets(query)}{_remove_secrets(fragment)}"


def remove_passwords(text: str, *uris: str | None) -> str:
    """Remove what `remove_credentials` removes from a text with addresses; `uris` are those that
    are known to be in it.

    An address that is not known ends at a space or a quotation mark.
    """
    for uri in filter(None, uris):
        text = text.replace(uri, remove_credentials(uri))
    return _URI_IN_TEXT.sub(lambda match: remove_credentials(match[0]), text)


def _remove_secrets(parameters: str) -> str:
    """Remove parameters from a query or a fragment, which begins with its sign."""
    kept = [
        item
        for item in re.split("[&;]", parameters[1:])
        if "=" not in item
        or not _SECRET.search(unquote_plus(item.partition("=")[0]).rpartition("?")[2])
    ]
    return parameters[:1] + "&".join(kept) if any(kept) else ""
