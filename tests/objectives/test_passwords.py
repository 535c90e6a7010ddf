"""No password that is known, or looks like one, is left in a text, however it is written."""

import html
import json
import shlex
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from objectives import errors
from objectives.errors import UserError, hide_passwords, know_password

_SPELLINGS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "in a URL": quote,
    "in a URL, all of it": lambda text: quote(text, safe=""),
    "in a form": quote_plus,
    "in a URL, lower case": lambda text: "".join(f"%{byte:02x}" for byte in text.encode()),
    "in a URL of a URL": lambda text: quote(quote(text, safe=""), safe=""),
    "in JSON": json.dumps,
    "in Python": repr,
    "in a shell": shlex.quote,
    "for libpq": lambda text: text.replace("\\", "\\\\").replace("'", "\\'"),
    "in HTML": html.escape,
    "in JSON in JSON": lambda text: json.dumps(json.dumps(text)),
    "in JSON in HTML": lambda text: html.escape(json.dumps(text)),
}
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=8, max_size=20)


@pytest.mark.parametrize("spelling", _SPELLINGS)
@given(password=_TEXTS, before=st.text(max_size=3), after=st.text(max_size=3))
def test_a_known_password_is_hidden_in_any_spelling(
    spelling: str, password: str, before: str, after: str
) -> None:
    assume(len(set(password)) > 4)
    written = _SPELLINGS[spelling](password)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(errors, "_known", set())
        know_password(password)
        shown = hide_passwords(f"{before}{written}{after}")
    assert password not in shown
    assert written.strip("'\"") not in shown


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:{}@db/x",
        "postgresql://:{}@db/x",
        "see postgresql+psycopg://me:a@{}@db/x, which is down",
        "mysql://me@db/x?password={}&charset=utf8",
        "mysql://me@db/x?charset=utf8&passwd={}",
        "postgresql://me@db/x?sslpassword={}",
        "host=db user=me password={} dbname=x",
        "host=db password = '{} and more' dbname=x",
        "host=db password='it\\'s {}' dbname=x",
        "PGPASSWORD={} maskfront run",
        "os.environ['PGPASSWORD'] = '{}'",
        "monkeypatch.setenv('MYSQL_PWD', '{}')",
        'connect(user="me", passwd="{}")',
        'password: str = "{}"',
        "password: {}",
        '{{"user": "me", "password": "{}"}}',
        "Password:'{}'",
    ],
)
def test_what_looks_like_a_password_is_hidden(text: str) -> None:
    for password in ("s3cret", "s3%40cr%2Fet", "pa/ss:w+rd", "100"):
        assert password not in hide_passwords(text.format(password))


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me@db:5432/x: password authentication failed for user 'me'",
        "use postgresql://USER@HOST/DATABASE or grpc://HOST:PORT (`maskfront serve-storage`)",
        "http://127.0.0.1:8080/dashboard",
        "accuracy 0.8125 (held out 0.7917) at FLOPs ratio 0.500, asked 0.500",
    ],
)
def test_all_else_is_left_as_it_is(text: str) -> None:
    assert hide_passwords(text) == text


def test_a_short_one_is_hidden_where_it_stands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASKFRONT_STORAGE_PASSWORD", "ab")
    assert hide_passwords("ab, cabin 'ab'") == "***, cabin '***'"


def test_an_error_shows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "s3cret")
    with pytest.raises(UserError) as caught:
        raise UserError("no rows at https://me:s3%63ret@host/rows.csv", "data")
    assert "s3" not in repr(caught.value)
    assert str(caught.value) == "no rows at https://me@host/rows.csv (data=...)"


@pytest.mark.timeout(120)
def test_a_long_text_takes_no_long_time() -> None:
    for piece in ("x", "x ", "=", "password=", "a.b", "\\", "%25", "://"):
        hide_passwords(piece * 20_000)
