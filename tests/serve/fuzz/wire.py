"""Made-up bytes for the server: bodies that are broken, huge, deep or of another kind, and other paths and methods."""

import json

from hypothesis import strategies as st

SEED = {"prompt": [5, 9, 2], "max_tokens": 3, "seed": 5, "stop": ["ab"], "logit_bias": {"3": 1.5}, "n": 2}
CHAT = {"messages": [{"role": "user", "content": [{"type": "text", "text": "ab"}]}], "max_tokens": 3}
TOKENS = {"tokens": [1, 2, 3]}
ITEMS = {"input": [{"role": "user", "content": [{"type": "input_text", "text": "ab"}]}], "max_output_tokens": 3}
PATHS = {
    "/v1/completions": SEED,
    "/v1/chat/completions": CHAT,
    "/v1/responses": ITEMS,
    "/tokenize": {"prompt": "ab"},
    "/detokenize": TOKENS,
}
PIECES = st.sampled_from(
    [
        b"\xff",
        b"\xed\xa0\x80",
        b"\x00",
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"9" * 400,
        b"9" * 5000,
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b"\\ud800",
        b'"prompt":',
        b'"n":1e400,',
        b'"prompt":"b",',
        b"null",
        b"true",
        b"-0",
        b"[" * 2000,
        b"\xef\xbb\xbf",
        b'{"a":' * 1500,
        b'"file:///etc/passwd"',
        b'"http://127.0.0.1:1/"',
        b"\\u0000",
        b",",
        b":",
        b" " * 3000,
    ]
)
KINDS = st.sampled_from(
    [
        "application/json",
        "application/json",
        "application/json",
        "text/plain",
        "",
        "application/json; charset=utf-16",
        "multipart/form-data",
        "multipart/form-data; boundary=x",
        "application/x-www-form-urlencoded",
        "\xff",
        "a/b;" * 99,
    ]
)
METHODS = st.sampled_from(["POST"] * 8 + ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"])
ODD_PATHS = st.sampled_from(
    [
        "/",
        "/v1",
        "/v1/models/%2e%2e%2fetc%2fpasswd",
        "/v1/models/%00",
        "/v1/models/%ff",
        "//etc/passwd",
        "/health?x=%ff",
        "/v1/completions/",
        "/openapi.json",
        "/docs",
        "/v1/models/file:%2f%2f%2fetc%2fpasswd",
        "/v1/models/tiny",
    ]
)


@st.composite
def messages(draw):
    """(method, path, headers, pieces of a body)."""
    path = draw(st.one_of(st.sampled_from(sorted(PATHS)), st.sampled_from(sorted(PATHS)), ODD_PATHS))
    content = json.dumps(PATHS.get(path, SEED)).encode()
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(content)))
        what = draw(st.sampled_from(["insert", "cut", "drop", "flip", "double"]))
        if what == "insert":
            content = content[:at] + draw(PIECES) + content[at:]
        elif what == "cut":
            content = content[:at]
        elif what == "drop":
            content = content[:at] + content[at + draw(st.integers(1, 12)) :]
        elif what == "flip" and at < len(content):
            content = content[:at] + bytes([content[at] ^ draw(st.integers(1, 255))]) + content[at + 1 :]
        elif what == "double":
            content = content[:at] + content
    if draw(st.integers(0, 19)) == 0:
        content = content.ljust(draw(st.sampled_from([60_000, 70_000])))
    encoding = draw(st.sampled_from(["", "", "", "", "", "utf-16", "utf-32"]))
    if encoding:
        content = content.decode("utf-8", "replace").encode(encoding)
    headers = {"content-type": draw(KINDS).encode("latin-1")}
    if draw(st.integers(0, 9)) == 0:
        headers["authorization"] = draw(st.binary(max_size=20)).replace(b"\n", b"").replace(b"\r", b"")
    chunked = draw(st.booleans())
    return draw(METHODS), path, headers, content, chunked


async def in_chunks(content):
    """``content`` without its length being said before."""
    for start in range(0, len(content), 10_000):
        yield content[start : start + 10_000]
