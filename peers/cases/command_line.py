"""mosquitto_pub, mosquitto_sub and mosquitto_rr, each started as a user would."""

from __future__ import annotations

import itertools
import os
import queue
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from endpoint import HOST, ca_file, endpoint
from suite import BROKER, WAIT, Case, Mismatch, expect, require, take

VERSIONS = {"v3.1": "mqttv31", "v3.1.1": "mqttv311", "v5": "mqttv5"}
SINCE_V311 = ("v3.1.1", "v5")
EVERY_BYTE = bytes(range(256))
TIMED_OUT = 27
# mosquitto sends beyond the Receive Maximum of 20 that mosquitto_sub announces, and mosquitto_sub then gives up.
LINES = 15 if BROKER == "mosquitto" else 100

_serial = itertools.count(1)
_command_cases: list[Case] = []


class Shell:
    """The axes of one case, and the three programs bound to them."""

    def __init__(self, transport: str, version: str) -> None:
        self._transport, self.version = transport, version
        self._prefix = f"cli{os.getpid()}/{next(_serial)}"

    def topic(self, leaf: str) -> str:
        """A topic of this case alone."""
        return f"{self._prefix}/{leaf}"

    def arguments(self, program: str, *options: str) -> list[str]:
        """The command line of a program of mosquitto-clients."""
        line = [program, "-h", HOST, "-p", str(endpoint(self._transport).port), "-V", VERSIONS[self.version]]
        if self._transport == "tls":
            line += ["--cafile", ca_file()]
        return [*line, *options]

    def publish(self, *options: str, stdin: bytes = b"") -> None:
        """mosquitto_pub, which must succeed."""
        self.finish("mosquitto_pub", *options, stdin=stdin)

    def finish(self, program: str, *options: str, stdin: bytes = b"", code: int = 0) -> bytes:
        """Runs a program to its end; its standard output."""
        line = self.arguments(program, *options)
        done = subprocess.run(line, input=stdin, capture_output=True, timeout=WAIT, check=False)
        expect(done.returncode, code, f"exit code of {program} ({done.stderr.decode(errors='replace').strip()})")
        return done.stdout

    @contextmanager
    def subscriber(self, *options: str) -> Iterator[Subscriber]:
        """mosquitto_sub, already subscribed: it has printed a retained message as proof."""
        ready = f"ready-{self._prefix}/{next(_serial)}"
        self.publish("-t", ready, "-m", "ready", "-q", "1", "-r")
        process = Subscriber(self.arguments("mosquitto_sub", *options, "-t", ready))
        try:
            process.line_with(b"ready")
            yield process
        finally:
            process.kill()


class Subscriber:
    """A running mosquitto_sub whose output lines fill a queue."""

    def __init__(self, line: list[str]) -> None:
        self._process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(line.removesuffix(b"\n"))
        self._lines.put(None)

    def line(self) -> bytes:
        """The next line of output."""
        line = take(self._lines, "line from mosquitto_sub")
        if line is None:
            raise Mismatch("mosquitto_sub ended early")
        return line

    def line_with(self, text: bytes) -> None:
        """Waits for a line that holds the text."""
        line = self.line()
        require(text in line, f"mosquitto_sub printed {line!r}, wanted {text!r}")

    def rest(self) -> list[bytes]:
        """All lines until the program ends by itself, with exit code 0."""
        lines = []
        while (line := take(self._lines, "end of mosquitto_sub")) is not None:
            lines.append(line)
        expect(self._process.wait(WAIT), 0, "exit code of mosquitto_sub")
        return lines

    def kill(self) -> None:
        """Ends it without DISCONNECT."""
        self._process.kill()
        self._process.wait(WAIT)


def command(
    versions: tuple[str, ...] = tuple(VERSIONS), **axes: tuple[Any, ...]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a case for TCP and TLS, these versions and further axes."""

    def register(body: Callable[..., None]) -> Callable[..., None]:
        for transport, version, *values in itertools.product(("tcp", "tls"), versions, *axes.values()):
            chosen = dict(zip(axes, values, strict=True))
            tail = "".join(f"-{axis}{value}" for axis, value in chosen.items())
            name = f"mosquitto_clients/{transport}/{version}/{body.__name__.replace('_', '-')}{tail}"

            def run(transport: str = transport, version: str = version, chosen: dict[str, Any] = chosen) -> None:
                body(Shell(transport, version), **chosen)

            _command_cases.append(Case(name, run))
        return body

    return register


def command_cases() -> list[Case]:
    """Every case of this module."""
    return list(_command_cases)


@command(qos=(0, 1, 2))
def round_trip(shell: Shell, qos: int) -> None:
    with shell.subscriber("-t", shell.topic("data"), "-q", str(qos), "-F", "%q %r %t %p", "-C", "3") as subscriber:
        shell.publish("-t", shell.topic("data"), "-m", "h\u00e9llo w\u00f6rld", "-q", str(qos))
        shell.publish("-t", shell.topic("data"), "-n", "-q", str(qos))
        head = f"{qos} 0 {shell.topic('data')} "
        expect(subscriber.rest(), [f"{head}h\u00e9llo w\u00f6rld".encode(), head.encode()], "lines of mosquitto_sub")


@command(qos=(0, 1, 2))
def megabyte_from_a_file(shell: Shell, qos: int) -> None:
    payload = EVERY_BYTE * 4096
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "payload"
        path.write_bytes(payload)
        shell.publish("-t", shell.topic("data"), "-f", str(path), "-q", "1", "-r")
    received = shell.finish("mosquitto_sub", "-t", shell.topic("data"), "-q", str(qos), "-N", "-C", "1")
    # Later subscribers of # shall not have to carry it.
    shell.publish("-t", shell.topic("data"), "-n", "-q", "1", "-r")
    require(received == payload, f"payload differs ({len(received)} of {len(payload)} bytes)")


@command()
def bytes_from_stdin(shell: Shell) -> None:
    shell.publish("-t", shell.topic("data"), "-s", "-q", "1", "-r", stdin=EVERY_BYTE)
    received = shell.finish("mosquitto_sub", "-t", shell.topic("data"), "-N", "-C", "1", "-W", "5")
    expect(received, EVERY_BYTE, "payload")


@command(qos=(0, 1, 2))
def a_message_per_line(shell: Shell, qos: int) -> None:
    wanted = [str(number).encode() for number in range(LINES)]
    with shell.subscriber("-t", shell.topic("data"), "-q", str(qos), "-C", str(LINES + 1)) as subscriber:
        shell.publish("-t", shell.topic("data"), "-l", "-q", str(qos), stdin=b"\n".join(wanted) + b"\n")
        expect(subscriber.rest(), wanted, "lines in order")


@command()
def retained_then_cleared(shell: Shell) -> None:
    topic = shell.topic("data")
    shell.publish("-t", topic, "-m", "kept", "-r", "-q", "1")
    line = shell.finish("mosquitto_sub", "-t", topic, "-F", "%r %p", "-C", "1", "-W", "5")
    expect(line, b"1 kept\n", "retained message")
    shell.publish("-t", topic, "-n", "-r", "-q", "1")
    # A retained fence closes the row: it alone is left under the wildcard.
    shell.publish("-t", shell.topic("fence"), "-m", "fence", "-r", "-q", "1")
    line = shell.finish("mosquitto_sub", "-t", shell.topic("#"), "-F", "%p", "-C", "1", "-W", "5")
    expect(line, b"fence\n", "retained messages after clearing")


@command(versions=("v5",))
def nothing_retained_times_out(shell: Shell) -> None:
    expect(shell.finish("mosquitto_sub", "-t", shell.topic("x"), "-W", "1", code=TIMED_OUT), b"", "output")


@command(qos=(0, 1, 2))
def will_of_a_killed_subscriber(shell: Shell, qos: int) -> None:
    will = ("--will-topic", shell.topic("will"), "--will-payload", "gone", "--will-qos", str(qos))
    with shell.subscriber("-t", shell.topic("will"), "-q", str(qos), "-F", "%q %p", "-C", "2") as watcher:
        with shell.subscriber(*will) as dying:
            dying.kill()
        expect(watcher.rest(), [f"{qos} gone".encode()], "Will Message")


@command(qos=(1, 2))
def session_resumed(shell: Shell, qos: int) -> None:
    # mosquitto_sub -c -E subscribes, waits for the SUBACK and leaves the Session behind.
    lasting = ("-c", "-i", f"cli-{os.getpid()}-{next(_serial)}", "-q", str(qos), "-t", shell.topic("data"))
    if shell.version == "v5":
        lasting += ("-x", "300")
    shell.finish("mosquitto_sub", *lasting, "-E")
    for text in ("one", "two", "three"):
        shell.publish("-t", shell.topic("data"), "-m", text, "-q", str(qos))
    received = shell.finish("mosquitto_sub", *lasting, "-C", "3", "-F", "%q %p", "-W", "5")
    expect(received, f"{qos} one\n{qos} two\n{qos} three\n".encode(), "offline messages")


@command(versions=SINCE_V311)
def shared_subscription(shell: Shell) -> None:
    share = ("-t", f"$share/g/{shell.topic('data')}", "-t", shell.topic("end"), "-q", "1", "-F", "%p")
    with shell.subscriber(*share) as first, shell.subscriber(*share) as second:
        wanted = [str(number).encode() for number in range(10, 30)]
        shell.publish("-t", shell.topic("data"), "-l", "-q", "1", stdin=b"\n".join(wanted) + b"\n")
        shell.publish("-t", shell.topic("end"), "-m", "end", "-q", "1")
        seen = []
        for member in (first, second):
            while (line := member.line()) != b"end":
                seen.append(line)
        expect(sorted(seen), wanted, "messages of both members")


@command(versions=("v5",))
def properties_shown(shell: Shell) -> None:
    data = shell.topic("data")
    form = "%p|%P|%C|%R|%D|%E"
    options = []
    for name, *values in (
        ("user-property", "a", "1"),
        ("user-property", "a", "2"),
        ("content-type", "text/plain"),
        ("response-topic", "ask/me"),
        ("correlation-data", "c0"),
        ("message-expiry-interval", "300"),
    ):
        options += ["-D", "publish", name, *values]
    with shell.subscriber("-t", data, "-F", form, "-C", "2") as subscriber:
        shell.publish("-t", data, "-m", "x", *options)
        (line,) = subscriber.rest()
    *head, expiry = line.decode().split("|")
    expect(head, ["x", "a:1 a:2", "text/plain", "ask/me", "c0"], "payload and properties")
    require(int(expiry) in (299, 300), f"message expiry {expiry}, wanted 300")


@command(versions=SINCE_V311)
def request_response(shell: Shell) -> None:
    asked, answered = shell.topic("ask"), shell.topic("answer")
    # Retained, the answer is there as soon as mosquitto_rr has subscribed.
    shell.publish("-t", answered, "-m", "4", "-r", "-q", "1")
    received = shell.finish("mosquitto_rr", "-t", asked, "-e", answered, "-m", "2+2", "-W", "5")
    expect(received, b"4\n", "answer")


@command()
def sys_topics(shell: Shell) -> None:
    for leaf in ("version", "uptime"):
        line = shell.finish("mosquitto_sub", "-t", f"$SYS/broker/{leaf}", "-C", "1", "-W", "5")
        require(len(line) > 1, f"$SYS/broker/{leaf} is empty")
