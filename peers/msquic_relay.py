"""The relay of `peers/msquic`: what connects to it over TCP is at the broker over QUIC, by msquic."""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from typing import Any

from endpoint import STANDARD, announce, ca_file, endpoint
from suite import Mismatch, take


class Relay:
    """A process of the relay, announced as the transport `name`; `options` are those of its command line."""

    def __init__(self, name: str, *options: str) -> None:
        broker = ["--host", "localhost", "--port", str(endpoint("quic").port), "--cafile", ca_file(STANDARD)]
        self._process = subprocess.Popen(
            [os.environ["PEERS_MSQUIC_RELAY"], "client", *broker, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        announce(name, int(self.told("listening")))

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: Any) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))

    def told(self, word: str) -> str:
        """The rest of the next line that begins with that word; others before it are skipped."""
        while True:
            first, _, rest = take(self._lines, f"line {word!r} of the relay").partition(" ")
            if first == word:
                return rest
            if first in ("failed", "not"):
                raise Mismatch(f"the relay: {first} {rest}")

    def move(self, sent: int = 0) -> int:
        """Continues every connection from another port, once all bytes, and at least `sent`, are there; that port."""
        assert self._process.stdin
        self._process.stdin.write(f"move {sent}\n")
        return int(self.told("moved"))
