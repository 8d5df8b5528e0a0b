"""Debian's curl, over HTTP/1.1 and HTTP/2 on TLS."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from cases.http.upstream import upstream
from cases.http.web import NOBODY, OPERATOR, VERSIONS, VIEWER, Answer, curl, send_json, url, web_case
from endpoint import STANDARD
from suite import expect, require

BOTH = tuple(VERSIONS)
HELLO = b"Hello from a file.\n"
# Bytes of a request body above the limit of the front.
TOO_LARGE = (16 << 20) + 1


def over(version: str, path: str, *options: str, login: tuple[str, str] | None = None) -> Answer:
    """The answer over this version of HTTP."""
    option, number = VERSIONS[version]
    answer = curl(path, option, *options, login=login)
    if answer.status:
        expect(answer.version, number, "version of HTTP")
    return answer


@web_case("curl", version=BOTH)
def health(version: str) -> None:
    """Health for load balancers, without a login."""
    for path in ("/health", "/health/ready", "/health/live", "/ready", "/live", "/status"):
        answer = over(version, path)
        expect((answer.status, answer.json()["status"]), (200, "ok"), path)


@web_case("curl", version=BOTH)
def files(version: str) -> None:
    """Files, their validators, a range, HEAD, the index of a directory."""
    answer = over(version, "/files/hello.txt")
    expect((answer.status, answer.body), (200, HELLO), "the file")
    expect(answer.headers["content-type"].split(";")[0], "text/plain", "content type")
    for name, option in (("etag", "If-None-Match"), ("last-modified", "If-Modified-Since")):
        known = over(version, "/files/hello.txt", "--header", f"{option}: {answer.headers[name]}")
        expect((known.status, known.body), (304, b""), f"answer to {option}")
    part = over(version, "/files/hello.txt", "--range", "6-9")
    expect((part.status, part.body), (206, b"from"), "the range")
    expect(part.headers["content-range"], f"bytes 6-9/{len(HELLO)}", "Content-Range")
    behind = over(version, "/files/hello.txt", "--range", "100-")
    expect(behind.headers["content-range"], f"bytes */{len(HELLO)}", "Content-Range of a range behind the end")
    behind.problem(416)
    over(version, "/files/hello.txt", "--header", 'If-Match: "other"').problem(412)
    missing = over(version, "/files/none", "--head")
    expect(missing.status, 404, "HEAD of no file")
    head = over(version, "/files/hello.txt", "--head")
    expect((head.status, head.headers["content-length"]), (200, str(len(HELLO))), "HEAD")
    require(b"Index of the files" in over(version, "/files/").body, "the index of the directory")
    over(version, "/files/none").problem(404)
    refused = over(version, "/files/hello.txt", "--request", "PUT")
    refused.problem(405)
    expect(refused.headers["allow"], "GET, HEAD", "Allow")


@web_case("curl", version=BOTH)
def path_traversal(version: str) -> None:
    """No path leads out of the directory of a route: its neighbour `users` is not found."""
    paths = ["/files/../users", "/files/%2e%2e/users", "/files/..%2fusers", "/files/%2e%2e%2fusers", "/files/..\\users"]
    paths += ["/files//../users", "/files/./../users", "/files/hello.txt/../../users", "/files/%00", "/files/%252e%252e/users"]
    paths += ["/files/" + "../" * 12 + "etc/passwd", "/files//etc/passwd", "/files/%2fetc/passwd", "/../files/../users"]
    for path in paths:
        answer = over(version, path, "--path-as-is")
        require(answer.status in (400, 404), f"{path}: status {answer.status}")
        answer.problem(answer.status)
        require(b"argon2id" not in answer.body and b"root:" not in answer.body, f"{path} is a file")


@web_case("curl", version=BOTH)
def proxy(version: str) -> None:
    """A request to the upstream and back: path, fields about the client, none that the client made up, a large body."""
    server = upstream()
    made_up = ("--header", "X-Forwarded-For: 192.0.2.1", "--header", "Forwarded: for=192.0.2.1")
    answer = over(version, "/app/a%20b?x=1&y=%2F", *made_up, "--header", "Connection: x-own", "--header", "X-Own: 1")
    seen = answer.json()
    expect((answer.status, seen["path"]), (200, "/app/a%20b?x=1&y=%2F"), "path at the upstream")
    fields = seen["fields"]
    expect((fields["x-forwarded-for"], fields["x-forwarded-proto"]), ("127.0.0.1", "https"), "fields about the client")
    require("192.0.2.1" not in fields["forwarded"] and "127.0.0.1" in fields["forwarded"], f"Forwarded: {fields['forwarded']}")
    expect(fields["host"], url("").removeprefix("https://"), "Host at the upstream")
    if version == "http1":
        require("x-own" not in fields, "a field that Connection names reached the upstream")
    with tempfile.NamedTemporaryFile() as large:
        large.write(os.urandom(3_000_000))
        large.flush()
        options = ("--request", "POST", "--header", "Content-Type: a/b", "--data-binary", f"@{large.name}")
        echoed = over(version, "/app/echo", *options)
        expect(echoed.status, 200, "status of a large body")
        require(echoed.body == Path(large.name).read_bytes(), "the body came back as another")
    expect(server.requests, ["GET /app/a%20b?x=1&y=%2F", "POST /app/echo"], "requests at the upstream")


@web_case("curl", version=BOTH)
def proxy_failures(version: str) -> None:
    """An upstream that is dead, or that breaks off: 502, and a response that is broken off too."""
    over(version, "/dead/x").problem(502)
    upstream()
    short = over(version, "/app/short")
    # 18: fewer bytes than announced; 92: a stream that was reset.
    require(short.exit_code in (18, 92), f"curl ended with {short.exit_code} although the response is incomplete")
    expect(over(version, "/app/x").status, 200, "status of the next request")


@web_case("curl", version=("http1",))
def smuggling(version: str) -> None:
    """Two lengths of a body: one request reaches the upstream at most, and none that hides in the body."""
    hidden = "0\r\n\r\nGET /app/hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"
    server = upstream()
    for fields in (
        ("Transfer-Encoding: chunked", "Content-Length: 5"),
        ("Transfer-Encoding: xchunked", f"Content-Length: {len(hidden)}"),
        ("Transfer-Encoding : chunked", f"Content-Length: {len(hidden)}"),
        ("Content-Length: 5", f"Content-Length: {len(hidden)}"),
    ):
        options = [part for field in fields for part in ("--header", field)]
        answer = over(version, "/app/x", *options, "--data-binary", hidden)
        require(answer.status == 0 or answer.status >= 400 or answer.body == hidden.encode(), f"{fields}: {answer}")
    require(not any("hidden" in request for request in server.requests), f"at the upstream: {server.requests}")


@web_case("curl", version=BOTH)
def roles(version: str) -> None:
    """Viewers read, operators write too, others do neither."""
    missing = over(version, "/api/v1/overview")
    missing.problem(401)
    require("www-authenticate" in missing.headers, "no WWW-Authenticate")
    over(version, "/api/v1/overview", login=(VIEWER[0], "wrong")).problem(401)
    message = send_json({"topic": f"curl/{version}", "payload": "x"})
    for login, read, write in ((NOBODY, 403, 403), (VIEWER, 200, 403), (OPERATOR, 200, 200)):
        for path in ("/api/v1/overview", "/api/v1/clients", "/metrics"):
            answer = over(version, path, login=login)
            expect(answer.status, read, f"{login[0]} reads {path}")
            if read != 200:
                answer.problem(read)
        answer = over(version, "/api/v1/publish", *message, login=login)
        if write == 200:
            expect((answer.status, answer.json()["matched"]), (200, 0), f"{login[0]} publishes")
        else:
            answer.problem(write)


@web_case("curl", version=BOTH)
def unknown_fields(version: str) -> None:
    """Unknown fields and parameters are named in the refusal; bodies that are no JSON are refused."""
    unknown = over(version, "/api/v1/publish", *send_json({"topic": "a", "payload": "", "retian": True}), login=OPERATOR)
    require("retian" in unknown.problem(400), "the detail names the field")
    parameter = over(version, "/api/v1/clients?prefx=a", login=VIEWER)
    require("prefx" in parameter.problem(400), "the detail names the parameter")
    broken = ("--header", "Content-Type: application/json", "--data-binary", "{")
    over(version, "/api/v1/publish", *broken, login=OPERATOR).problem(400)
    form = ("--data-binary", json.dumps({"topic": "a", "payload": ""}))
    over(version, "/api/v1/publish", *form, login=OPERATOR).problem(415)


@web_case("curl", version=BOTH)
def cross_origin(version: str) -> None:
    """Pages of other origins do not write, whatever credentials the browser has."""
    message = send_json({"topic": f"curl/{version}", "payload": "x"})
    own = url("")
    for field, status in (
        ("Origin: https://evil.example", 403),
        ("Origin: null", 403),
        (f"Origin: {own}1", 403),
        ("Sec-Fetch-Site: cross-site", 403),
        ("Sec-Fetch-Site: same-site", 403),
        (f"Origin: {own}", 200),
        ("Sec-Fetch-Site: same-origin", 200),
    ):
        answer = over(version, "/api/v1/publish", *message, "--header", field, login=OPERATOR)
        if status == 200:
            expect(answer.status, status, field)
        else:
            answer.problem(status)
    over(version, "/app/echo", *message, "--header", "Origin: https://evil.example").problem(403)


@web_case("curl", version=BOTH)
def long_url(version: str) -> None:
    """URLs of 9 KB and of 1 MB: 414 or 431, and the next request is answered."""
    answer = over(version, "/" + "a" * 9000)
    answer.problem(414)
    with tempfile.NamedTemporaryFile() as query:
        query.write(b"a" * 1_000_000)
        query.flush()
        # Too long for an argument of a process.
        answer = over(version, "/", "--get", "--data-binary", f"@{query.name}")
    require(answer.status in (414, 431) or answer.exit_code in (55, 56, 92), f"status {answer.status}, curl {answer.exit_code}")
    expect(over(version, "/health").status, 200, "status of the next request")


@web_case("curl", version=BOTH)
def large_body(version: str) -> None:
    """A body above the limit is refused by its length, before it is sent."""
    with tempfile.NamedTemporaryFile() as body:
        body.truncate(TOO_LARGE)
        options = ("--header", "Content-Type: application/json", "--data-binary", f"@{body.name}")
        answer = over(version, "/api/v1/publish", *options, login=OPERATOR)
    # curl before 8.0 loses a response on HTTP/2 that comes while it sends.
    is_lost = version == "http2" and answer.exit_code == 92
    require(answer.status == 413 or is_lost, f"status {answer.status}, curl ended with {answer.exit_code}")
    expect(over(version, "/health").status, 200, "status of the next request")


@web_case("curl", version=BOTH)
def early_refusals(version: str) -> None:
    """A refusal of a request whose body need not be read comes whole, however the body and it meet."""
    message = send_json({"topic": "a", "payload": "x" * 20_000})
    for _ in range(20):
        over(version, "/api/v1/publish", *message, login=VIEWER).problem(403)
        over(version, "/api/v1/publish", *message, "--header", "Origin: https://evil.example").problem(403)
        over(version, "/none", *message).problem(404)


@web_case("curl")
def rebinding() -> None:
    """On loopback, names of other hosts are refused for every path, with and without TLS."""
    for broker in (STANDARD, "WEB_"):
        for path in ("/", "/api/v1/overview", "/metrics", "/mqtt", "/health", "/app.js"):
            for host in ("evil.example", "evil.example:80", "localhost.evil.example", "192.0.2.1"):
                answer = curl(path, "--header", f"Host: {host}", broker=broker)
                require("unknown here" in answer.problem(421), f"{host} {path}")
        expect(curl("/health", "--header", "Host: localhost", broker=broker).status, 200, "status for localhost")


@web_case("curl")
def plain_loopback() -> None:
    """Without users, clients on this machine are operators, except those that a proxy speaks for."""
    answer = curl("/api/v1/overview", broker=STANDARD)
    expect((answer.status, answer.version), (200, "1.1"), "overview")
    expect(curl("/api/v1/publish", *send_json({"topic": "a", "payload": "x"}), broker=STANDARD).status, 200, "publish")
    for field in ("X-Forwarded-For: 192.0.2.1", "Forwarded: for=192.0.2.1", "Via: 1.1 proxy"):
        curl("/api/v1/overview", "--header", field, broker=STANDARD).problem(401)


@web_case("curl")
def pages() -> None:
    """The dashboard and the document of the API, with the headers that protect them."""
    for path, kind in (("/", "text/html"), ("/app.js", "text/javascript"), ("/api/", "text/html")):
        answer = curl(path)
        expect((answer.status, answer.headers["content-type"].split(";")[0]), (200, kind), path)
        require("default-src 'none'" in answer.headers["content-security-policy"], f"policy of {path}")
        expect(answer.headers["x-content-type-options"], "nosniff", path)
        known = curl(path, "--header", f"If-None-Match: {answer.headers['etag']}")
        expect((known.status, known.body), (304, b""), f"{path} again")
        packed = curl(path, "--compressed")
        expect((packed.headers["content-encoding"], packed.body), ("gzip", answer.body), f"{path} with gzip")
        require(packed.headers["etag"] != answer.headers["etag"], f"{path} has one tag for two encodings")
    document = Path(__file__).parents[3].joinpath("docs", "openapi.json").read_bytes()
    require(curl("/api/v1/openapi.json").body == document, "the document is docs/openapi.json")
    curl("/none").problem(404)
