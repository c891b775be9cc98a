"""The page's routes: its files, the headers that keep it to itself, the key, and what it is told."""

import base64
import re
from importlib.resources import files

import pytest

from paceline.serve.page import page_files
from tests.serve.served import PROMPT, running, serving

FOLDER = files("paceline.serve") / "page"


def basic(key, user="me"):
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{key}".encode()).decode()}


def test_every_file_is_served_as_it_is_and_nothing_else():
    async def check():
        async with serving() as client:
            answer = await client.get("/")
            assert answer.content == (FOLDER / "index.html").read_bytes()
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
            for name, content in page_files().items():
                if name != "index.html":
                    answer = await client.get(f"/page/{name}")
                    assert answer.status_code == 200 and answer.content == content
                    kind = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}[name.rpartition(".")[2]]
                    assert answer.headers["content-type"].startswith(kind)
            for path in ("/page/", "/page/nothing.js", "/page/..%2fapp.py", "/page/../app.py", "/page/%2e%2e/app.py"):
                assert (await client.get(path)).status_code == 404, path
            assert (await client.post("/")).status_code == 405
            described = (await client.get("/openapi.json")).json()["paths"]
            assert not [path for path in described if path == "/" or path.startswith("/page")]

    running(check())


@pytest.mark.parametrize("path", ["/", "/page/page.css", "/page/main.js", "/page/about"])
def test_nothing_is_loaded_from_elsewhere_and_no_other_page_frames_it(path):
    async def check():
        async with serving() as client:
            headers = (await client.get(path)).headers
            policy = dict(part.strip().partition(" ")[::2] for part in headers["content-security-policy"].split(";"))
            assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
            assert policy["form-action"] == "'none'" and policy["require-trusted-types-for"] == "'script'"
            assert {policy[name] for name in ("script-src", "style-src", "img-src", "connect-src")} == {"'self'"}
            assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
            assert headers["cross-origin-resource-policy"] == headers["cross-origin-opener-policy"] == "same-origin"

    running(check())


def test_files_name_no_other_server_and_put_no_text_where_markup_is_read():
    for name, content in page_files().items():
        text = content.decode("utf-8")
        found = set(re.findall(r"https?://[^\s\"'`)]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not found, (name, found)
        forbidden = (
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|DOMParser|srcdoc|javascript:"
        )
        assert not re.findall(forbidden, text), name
        if name.endswith(".html"):
            assert not re.findall(r"\son[a-z]+=|style=|<style|<script(?! type=\"module\" src=)", text), name
        assert len(text.splitlines()) <= 320, name


def test_an_unchanged_file_is_not_sent_again():
    async def check():
        async with serving() as client:
            tag = (await client.get("/page/main.js")).headers["etag"]
            again = await client.get("/page/main.js", headers={"If-None-Match": tag})
            assert again.status_code == 304 and not again.content
            assert "content-security-policy" in again.headers
            assert (await client.get("/page/main.js", headers={"If-None-Match": '"other"'})).status_code == 200

    running(check())


def test_the_page_learns_what_it_may_ask_for():
    async def check():
        async with serving(steps=True) as client:
            about = (await client.get("/page/about")).json()
            assert about["model"] == "tiny" and about["chat"] and about["return_steps"] and about["lossless"]
            assert about["drafters"] == ["model"] and about["num_draft_tokens"] == 3
            assert about["max_model_len"] == 512 and about["max_outputs"] == 16
        async with serving(drafter=None, num_draft_tokens="auto") as client:
            about = (await client.get("/page/about")).json()
            assert about["drafters"] == [] and about["num_draft_tokens"] == 0 and not about["return_steps"]

    running(check())


def test_the_key_covers_the_page_and_browsers_are_asked_for_it_as_a_password():
    async def check():
        async with serving(api_key="secret") as client:
            for path in ("/", "/page/main.js", "/page/about"):
                refused = await client.get(path)
                assert refused.status_code == 401 and refused.headers["www-authenticate"].startswith("Basic realm=")
                assert (await client.get(path, headers=basic("secret"))).status_code == 200
                assert (await client.get(path, headers={"Authorization": "Bearer secret"})).status_code == 200
                for wrong in (basic("Secret"), basic(""), {"Authorization": "Basic !!"}, {"Authorization": "Basic"}):
                    assert (await client.get(path, headers=wrong)).status_code == 401
            refused = await client.get("/v1/models")  # programs are not asked for passwords
            assert refused.status_code == 401 and "www-authenticate" not in refused.headers

    running(check())


def test_a_password_that_a_browser_adds_for_the_page_of_another_is_not_taken():
    async def check():
        async with serving(api_key="secret") as client:
            body = {"prompt": PROMPT, "max_tokens": 2}
            for origin, status in (
                (None, 200),
                ("http://test", 200),
                ("https://evil.example", 401),
                ("null", 401),
                ("http://[", 401),
            ):
                headers = basic("secret") | ({} if origin is None else {"Origin": origin})
                answer = await client.post("/v1/completions", json=body, headers=headers)
                assert answer.status_code == status, origin
            # A client that was given the key may be where it likes.
            headers = {"Authorization": "Bearer secret", "Origin": "https://evil.example"}
            assert (await client.post("/v1/completions", json=body, headers=headers)).status_code == 200

    running(check())
