"""A client that openapi-python-client generates from `docs/openapi.json`, without changes."""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import pkgutil
import shutil
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import wire
from cases.http.web import OPERATOR, VIEWER, mqtt_client, url, web_case
from endpoint import WEB, ca_file
from raw_client import RawClient
from suite import WAIT, expect, require

DOCUMENT = Path(__file__).parents[3].joinpath("docs", "openapi.json")
PACKAGE = "braidmq_api"
# The generator knows text as a body, but not that of server-sent events.
CONFIG = {"content_type_overrides": {"text/event-stream": "text/plain"}, "post_hooks": [], "package_name_override": PACKAGE}


@functools.cache
def _generate() -> Any:
    """The package, generated without a warning and imported."""
    home = tempfile.mkdtemp(prefix="braidmq-api-")
    atexit.register(shutil.rmtree, home)
    config = Path(home, "config.json")
    config.write_text(json.dumps(CONFIG))
    command = [os.path.join(os.path.dirname(sys.executable), "openapi-python-client"), "generate", "--meta", "none"]
    command += ["--path", str(DOCUMENT), "--output-path", str(Path(home, PACKAGE)), "--config", str(config)]
    done = subprocess.run([*command, "--fail-on-warning"], capture_output=True, text=True, check=False)
    require(done.returncode == 0, f"the generator ended with {done.returncode}: {done.stdout} {done.stderr}")
    sys.path.insert(0, home)
    return importlib.import_module(PACKAGE)


class Api:
    """The generated client, with a login. `call` runs an operation by its id."""

    def __init__(self, login: tuple[str, str] | None) -> None:
        context = ssl.create_default_context(cafile=ca_file(WEB))
        auth = {"auth": httpx.BasicAuth(*login)} if login else {}
        self.client = _generate().Client(url(""), verify_ssl=context, timeout=httpx.Timeout(WAIT), httpx_args=auth)

    def call(self, operation: str, **arguments: Any) -> Any:
        """The response of an operation: `status_code`, `parsed`, `content`."""
        return _operations()[operation].sync_detailed(client=self.client, **arguments)

    def parsed(self, operation: str, **arguments: Any) -> Any:
        """The model of a successful response, with no member that the document does not have."""
        response = self.call(operation, **arguments)
        require(response.status_code < 300, f"{operation}: {response.status_code} {response.content!r}")
        json.loads(response.content, object_pairs_hook=_without_duplicates)
        _check_model(response.parsed, operation)
        return response.parsed

    def problem(self, status: int, operation: str, **arguments: Any) -> str:
        """The detail of a refusal, which must be the model Problem."""
        response = self.call(operation, **arguments)
        expect(response.status_code, status, f"status of {operation}")
        expect(type(response.parsed).__name__, "Problem", f"model of the refusal of {operation}")
        expect(response.parsed.status, status, "status in the problem")
        return str(response.parsed.detail)


@functools.cache
def _operations() -> dict[str, Any]:
    """Modules by the id of their operation."""
    package = importlib.import_module(f"{_generate().__name__}.api")
    found = {}
    for tag in pkgutil.iter_modules(package.__path__):
        inner = importlib.import_module(f"{package.__name__}.{tag.name}")
        for module in pkgutil.iter_modules(inner.__path__):
            found[module.name] = importlib.import_module(f"{inner.__name__}.{module.name}")
    return found


def _model(name: str) -> Any:
    return getattr(importlib.import_module(f"{_generate().__name__}.models"), name)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    require(len(names) == len(set(names)), f"a member stands twice: {names}")
    return dict(pairs)


def _models(value: Any) -> Iterator[Any]:
    """Models inside of a value, itself included."""
    if isinstance(value, list):
        for item in value:
            yield from _models(item)
    elif hasattr(value, "to_dict"):
        yield value
        for name in getattr(value, "__slots__", ()) or vars(value):
            if name != "additional_properties" and hasattr(value, name):
                yield from _models(getattr(value, name))


def _check_model(value: Any, operation: str) -> None:
    for model in _models(value):
        unknown = getattr(model, "additional_properties", {})
        # The configuration is an object of any members.
        if operation != "get_config":
            expect(dict(unknown), {}, f"members of {type(model).__name__} that the document does not have")


@web_case("openapi")
def every_operation() -> None:
    """Each operation of the document is in the client; each list and status can be read by a viewer."""
    document = json.loads(DOCUMENT.read_text())
    wanted = {one["operationId"]: (method, path) for path, item in document["paths"].items() for method, one in item.items()}
    expect(sorted(_operations()), sorted(wanted), "operations of the client")
    api = Api(VIEWER)
    with mqtt_client("openapi-all", keep_alive=60) as client:
        client.subscribe(("openapi/all/+", 1))
        read = []
        for operation, (method, path) in wanted.items():
            if method != "get" or "{" in path or path.endswith("/events") or path.endswith("/rules"):
                continue
            api.parsed(operation)
            read.append(operation)
        require(len(read) >= 9, f"only {read} were read")
        api.parsed("get_clients_id", id="openapi-all")
    # The broker has no file of rules, which is no error of the client.
    api.problem(404, "get_rules")


@web_case("openapi")
def clients() -> None:
    """Clients as models, page by page, and one with its subscriptions and Will."""
    api = Api(VIEWER)
    names = [f"openapi-{number}" for number in range(5)]
    connected = [mqtt_client(name, will=(f"{name}/gone", b"bye"), session_expiry=0) for name in names]
    try:
        connected[0].subscribe(("openapi/a/+", 1), ("openapi/b", 0))
        found, cursor = [], None
        while True:
            page = api.parsed("get_clients", prefix="openapi-", limit=2, **({"cursor": cursor} if cursor else {}))
            require(len(page.items) <= 2, f"{len(page.items)} items in a page of 2")
            found += [one.client_id for one in page.items]
            expect(page.total, 5, "total")
            if not (cursor := page.cursor):
                break
        expect(sorted(found), names, "clients of all pages")
        one = api.parsed("get_clients_id", id=names[0])
        expect((one.user, one.transport, one.version, one.connected), ("vera", "tcp", "5.0", True), "the client")
        expect(one.subscriptions, 2, "number of subscriptions")
        expect([(row.filter_, row.qos) for row in one.filters], [("openapi/a/+", 1), ("openapi/b", 0)], "filters")
        expect((one.will.topic, one.will.size_bytes), ("openapi-0/gone", 3), "the Will")
        rows = api.parsed("get_subscriptions", topic="openapi/b").items
        expect([(row.client_id, row.filter_) for row in rows], [("openapi-0", "openapi/b")], "subscriptions to a topic")
        streams = api.parsed("get_clients_id_streams", id=names[0])
        expect([(lane.kind, lane.stream) for lane in streams.streams], [("control", 0)], "streams")
        expect(Api(OPERATOR).call("delete_clients_id", id=names[4]).status_code, 204, "disconnecting")
        expect(connected[4].closed_with(), 0x98, "reason of the DISCONNECT: administrative action")
    finally:
        for client in connected:
            client.abandon()


@web_case("openapi")
def publish() -> None:
    """A message with properties goes to a subscriber, and is retained until it is deleted."""
    api = Api(OPERATOR)
    with mqtt_client("openapi-sub") as client:
        client.subscribe(("openapi/publish/#", 1))
        properties = _model("Properties")(content_type="text/plain", user_properties=[["a", "1"], ["a", "2"]])
        request = _model("PublishRequest")(topic="openapi/publish/é", payload="grüße", qos=1, retain=True, properties=properties)
        expect(api.parsed("post_publish", body=request).matched, 1, "matched sessions")
        packet = client.receive(wire.PUBLISH)
        expect((packet.topic, packet.payload.decode(), packet.qos), ("openapi/publish/é", "grüße", 1), "the message")
        expect(packet.properties["user_property"], [("a", "1"), ("a", "2")], "User Properties")
    expect(api.parsed("get_retained_topic", topic="openapi/publish/é").payload_text, "grüße", "the retained message")
    expect(api.call("delete_retained_topic", topic="openapi/publish/é").status_code, 204, "deleting")
    api.problem(404, "get_retained_topic", topic="openapi/publish/é")
    refused = _model("PublishRequest")(topic="openapi/#", payload="")
    require("topic" in api.problem(400, "post_publish", body=refused), "the detail names the field")


@web_case("openapi")
def bans() -> None:
    """A ban disconnects its client and refuses it until it is lifted."""
    api = Api(OPERATOR)
    with mqtt_client("openapi-banned") as client:
        ban = api.parsed("post_bans", body=_model("BanRequest")(client="openapi-banned", secs=60, reason="test"))
        expect((ban.client, ban.reason), ("openapi-banned", "test"), "the ban")
        require(client.closed_with() is not None, "no DISCONNECT")
    with RawClient(broker=WEB) as refused:
        refused.send(wire.connect(wire.V5, "openapi-banned", login=VIEWER))
        expect(refused.receive(wire.CONNACK).reason, 0x8A, "CONNACK: banned")
    expect([one.client for one in api.parsed("get_bans").items], ["openapi-banned"], "bans")
    expect(api.call("delete_bans", client_query="openapi-banned").status_code, 204, "lifting")
    api.problem(404, "delete_bans", client_query="openapi-banned")
    mqtt_client("openapi-banned").abandon()


@web_case("openapi")
def users() -> None:
    """A user that is made by the API logs in over MQTT, and is gone when it is deleted."""
    api = Api(OPERATOR)
    login = ("ümit", "long enough a password")
    expect(api.call("put_users_name", name=login[0], body=_model("PasswordRequest")(password=login[1])).status_code, 201, "new")
    require(login[0] in [one.name for one in api.parsed("get_users").items], "the user is listed")
    with mqtt_client("openapi-user", login) as client:
        expect(api.call("delete_users_name", name=login[0]).status_code, 204, "deleting")
        expect(client.closed_with(), 0x87, "reason of the DISCONNECT: not authorized")


@web_case("openapi")
def refusals() -> None:
    """Refusals are models too: of login, role, names, parameters."""
    Api(None).problem(401, "get_overview")
    Api(VIEWER).problem(403, "post_reload")
    Api(VIEWER).problem(404, "get_clients_id", id="nobody/é")
    Api(VIEWER).problem(400, "get_clients", limit=100_000)
    Api(VIEWER).problem(400, "get_clients", cursor="nonsense")


@web_case("openapi")
def events() -> None:
    """Server-sent events tell of a client that connects, as the schema Event says."""
    api, operations = Api(VIEWER), _operations()
    http = api.client.get_httpx_client()
    arguments = operations["get_events"]._get_kwargs(kinds="connected,disconnected")
    with http.stream(**arguments) as response:
        expect((response.status_code, response.headers["content-type"]), (200, "text/event-stream"), "the stream")
        lines = response.iter_lines()
        mqtt_client("openapi-event").abandon()
        seen = []
        while len(seen) < 2:
            line = next(lines)
            if line.startswith("event:"):
                kind = line.removeprefix("event:").strip()
            elif line.startswith("data:"):
                event = _model("Event").from_dict(json.loads(line.removeprefix("data:")))
                if event.client_id == "openapi-event":
                    _check_model(event, "get_events")
                    seen.append(kind)
    expect(seen, ["connected", "disconnected"], "events")
