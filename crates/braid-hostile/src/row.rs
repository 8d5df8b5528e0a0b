//! Table of the rows.

use crate::attack;
use crate::attacker::Attack;
use crate::well_behaved::Kind;

/// An attack, and what it may cost.
#[derive(Debug)]
pub(crate) struct Row {
    /// Name on the command line.
    pub(crate) name: &'static str,
    /// The attack in one sentence, with its bounds.
    pub(crate) summary: &'static str,
    /// Unit that the attacker counts.
    pub(crate) unit: &'static str,
    pub(crate) attack: Attack,
    /// Growth of the broker's memory that is allowed, MiB.
    pub(crate) growth_mib: f64,
    /// Reason for this bound, from docs/limits.md.
    pub(crate) growth_reason: &'static str,
    /// Settings of the broker other than the defaults.
    pub(crate) settings: &'static [&'static str],
    /// Well-behaved clients beside the attack.
    pub(crate) pairs: &'static [Kind],
}

impl Row {
    /// A row with the default settings whose attack keeps nothing in the broker but connections.
    const fn new(name: &'static str, summary: &'static str, unit: &'static str, attack: Attack) -> Self {
        Self {
            name,
            summary,
            unit,
            attack,
            growth_mib: 64.0,
            growth_reason: "connections alone, at most 64 KiB each for up to 1,000 at a time",
            settings: &[],
            pairs: &[Kind::Tcp, Kind::Quic],
        }
    }

    const fn growth(self, mib: f64, reason: &'static str) -> Self {
        Self { growth_mib: mib, growth_reason: reason, ..self }
    }

    /// The row of this name.
    ///
    /// # Errors
    /// There is none; the text has all names.
    pub(crate) fn named(name: &str) -> Result<&'static Self, String> {
        ROWS.iter().find(|row| row.name == name).ok_or_else(|| {
            let names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
            format!("no row has this name; there are {}", names.join(", "))
        })
    }
}

/// All rows in their order.
pub(crate) const ROWS: &[Row] = &[
    Row::new(
        "slowloris",
        "100 connections to each of the five listeners send a byte a second of a handshake or a CONNECT",
        "connections",
        attack::SLOWLORIS,
    ),
    Row::new(
        "tls-half",
        "250 connections each to TLS and secure WebSocket, 200 of them a second, send a ClientHello and then nothing",
        "handshakes",
        attack::TLS_HALF,
    ),
    Row::new(
        "ws-half",
        "250 connections to WebSocket, 200 of them a second, send a request for an upgrade without its end",
        "handshakes",
        attack::WS_HALF,
    ),
    Row::new(
        "quic-half",
        "500 Initial packets a second from a fresh address each, and then nothing",
        "handshakes",
        attack::QUIC_HALF,
    )
    .growth(64.0, "`retry_above`: 256 incomplete handshakes, and a stateless Retry for the rest"),
    Row::new(
        "quic-garbage",
        "5,000 datagrams a second of unknown versions, Initials without a valid tag, and short headers",
        "datagrams",
        attack::QUIC_GARBAGE,
    ),
    Row::new(
        "quic-streams",
        "8 connections open and reset streams at full speed",
        "streams",
        attack::QUIC_STREAMS,
    )
    .growth(64.0, "`limits.streams`: 273 streams for each of 8 connections, and 64 KiB each"),
    Row::new(
        "quic-moves",
        "8 connections move to another port 1,000 times a second together: PATH_CHALLENGE, NEW_CONNECTION_ID and \
         RETIRE_CONNECTION_ID for each",
        "moves",
        attack::QUIC_MOVES,
    ),
    Row::new(
        "quic-addresses",
        "8 connections of which each datagram comes from another of 32 addresses",
        "packets",
        attack::QUIC_ADDRESSES,
    ),
    Row::new(
        "ticket-replay",
        "the first flights of 16 resumed connections, each with a CONNECT in 0-RTT, are sent again 1,000 times a \
         second; a client with the Client Identifier in them must stay connected",
        "flights",
        attack::TICKETS,
    )
    .growth(64.0, "`retry_above`: 256 incomplete handshakes, and a stateless Retry for the rest"),
    Row::new(
        "half-packets",
        "200 clients, 100 of them a second, send 900,000 of 1,000,000 bytes, or 70,000 bytes of 256 MiB, of a PUBLISH, \
         and then a byte a second",
        "packets",
        attack::HALF_PACKETS,
    )
    .growth(192.0, "100 packets below `spool.threshold` in the heap, 1 MiB each, and 64 KiB of each of 100 in files"),
    Row::new(
        "half-packets-quic",
        "the same on each of 256 streams of 2 QUIC connections",
        "packets",
        attack::HALF_PACKETS_QUIC,
    )
    .growth(
        256.0,
        "for each of 2 connections 64 MiB of unread bytes, and `limits.partial_bytes` of incomplete packets",
    ),
    Row::new(
        "user-properties",
        "4 clients each send 65,535 User Properties in CONNECT, in SUBSCRIBE, and in PUBLISH at full speed to \
         subscribers that do not read",
        "packets",
        attack::USER_PROPERTIES,
    )
    .growth(
        256.0,
        "`limits.queued_bytes` for each of 4 sessions, which share their messages, and one packet for each of 8 \
         publishers while it is decoded",
    ),
    Row::new(
        "subscriptions-one",
        "one client subscribes to 100,000 filters and more, at full speed",
        "filters",
        attack::SUBSCRIPTIONS_ONE,
    )
    .growth(64.0, "`limits.subscription_bytes` of one session, 16 MiB"),
    Row::new(
        "subscriptions-many",
        "100 clients subscribe to 1,000 filters each",
        "filters",
        attack::SUBSCRIPTIONS_MANY,
    )
    .growth(192.0, "100,000 filters of five levels with a wildcard: 384 bytes, twice the text, 152 bytes a level"),
    Row::new(
        "deep-topics",
        "16 clients publish to and subscribe to topics and filters of 32,000 levels, wildcards on all of them included",
        "packets",
        attack::DEEP_TOPICS,
    )
    .growth(320.0, "`limits.subscription_bytes` of each of 16 sessions, 16 MiB, and their packets"),
    Row::new(
        "wildcards",
        "10 clients have 512 overlapping filters each with a Subscription Identifier; two publish to new topics that \
         match them all, at full speed",
        "messages",
        attack::WILDCARDS,
    )
    .growth(512.0, "`limits.queued_bytes` of each of 10 sessions, 32 MiB, and 5,120 filters"),
    Row::new(
        "churn",
        "16 clients with 4 Client Identifiers take over each other's session, and subscribe and unsubscribe 20 filters \
         at full speed",
        "packets",
        attack::CHURN,
    )
    .growth(192.0, "`limits.queued_bytes` of each of 4 sessions, 32 MiB"),
    Row {
        settings: &["limits.retained_messages=100000"],
        ..Row::new(
            "retained",
            "4 clients publish retained messages of 100 bytes to distinct topics at full speed",
            "messages",
            attack::RETAINED,
        )
        .growth(192.0, "`limits.retained_messages`, here 100,000, of less than 1 KiB each, and the store's page cache, 64 MiB")
    },
    Row::new(
        "qos2",
        "20 clients, half of them with a durable session, publish with all Packet Identifiers at QoS 2 and never send \
         PUBREL",
        "messages",
        attack::QOS2,
    )
    .growth(256.0, "65,535 identifiers for each of 20 sessions, and the store's page cache, 64 MiB"),
    Row::new(
        "pings",
        "16 clients send PINGREQ at full speed, half of them without reading the answers",
        "pings",
        attack::PINGS,
    ),
    Row {
        pairs: &[Kind::Tcp, Kind::Quic, Kind::Urgent],
        ..Row::new(
            "urgent",
            "4 clients publish messages of 1 MiB and 100 MB with the highest priority on 16 streams to subscribers with \
             the highest priority; a pair with priority 60,000 is beside them",
            "MiB",
            attack::URGENT,
        )
        .growth(
            512.0,
            "`limits.queued_bytes` and `limits.partial_bytes` for each of 4 pairs of clients, and their outboxes and \
             send windows",
        )
    },
    Row::new(
        "connects",
        "64 connections at a time are opened and closed over TCP at full speed: at once, by a reset, and after CONNACK",
        "connections",
        attack::CONNECTS,
    ),
    Row::new(
        "tls-connects",
        "64 connections at a time are opened over TLS at full speed and reset once the broker has signed",
        "handshakes",
        attack::TLS_CONNECTS,
    ),
    Row {
        settings: &["allow_anonymous=true", "authenticator=[{kind='password', file='{home}/users'}]"],
        ..Row::new(
            "passwords",
            "64 connections at a time over TCP guess the password of a user, at full speed; the others are anonymous",
            "guesses",
            attack::PASSWORDS,
        )
    }
    .growth(128.0, "argon2id: 19 MiB for each thread of the pool, and 64 connections"),
    Row::new(
        "ws-lengths",
        "32 connections send WebSocket frames that lie about their lengths, or that RFC 6455 forbids",
        "frames",
        attack::WS_LENGTHS,
    )
    .growth(64.0, "before CONNECT a frame has 64 KiB at most"),
    Row::new(
        "ws-fragments",
        "32 clients send WebSocket messages in fragments of no or one byte at full speed",
        "frames",
        attack::WS_FRAGMENTS,
    ),
    Row::new(
        "ws-pings",
        "32 clients send WebSocket pings of 125 bytes at full speed and read no pong",
        "frames",
        attack::WS_PINGS,
    ),
    Row::new(
        "http-connections",
        "1,800 connections at a time to the HTTP front from six addresses, a third each without a handshake, with TLS \
         and over HTTP/3, all idle",
        "connections",
        attack::HTTP_CONNECTIONS,
    )
    .growth(192.0, "`http.limits.connections`: 1,024, at most 192 KiB each"),
    Row::new(
        "http-requests",
        "64 connections send requests for a file, for the dashboard, and for the API without credentials at full speed \
         on HTTP/1.1; a third of them read no response",
        "requests",
        attack::HTTP_REQUESTS,
    ),
    Row::new(
        "http-slow",
        "240 connections send a byte a second: of a body for the API, of one for an upstream, of a head, and of each of \
         64 bodies for an upstream on HTTP/2",
        "connections",
        attack::HTTP_SLOW,
    )
    .growth(
        96.0,
        "240 connections, 64 KiB each, and requests for an upstream, as many as `http.limits.connections_per_address`, \
         64 KiB each with their connections",
    ),
    Row::new(
        "http-urls",
        "64 connections send URLs and fields of 1 MB, on HTTP/1.1 and 2, at full speed",
        "requests",
        attack::HTTP_URLS,
    )
    .growth(64.0, "`http.limits.head_bytes`, 32 KiB, and on HTTP/2 four times as much, for each of 64 connections"),
    Row::new(
        "http-resets",
        "8 connections of HTTP/2 send HEADERS and RST_STREAM, or an error for which the broker resets the stream, at full \
         speed",
        "requests",
        attack::HTTP_RESETS,
    ),
    Row::new(
        "http-continuation",
        "8 connections of HTTP/2 send CONTINUATION without an end at full speed: with fields of 1,000 bytes, of one byte, \
         and empty",
        "frames",
        attack::HTTP_CONTINUATION,
    )
    .growth(64.0, "`http.limits.head_bytes`, 32 KiB, and four times as much, for each of 8 connections"),
    Row::new(
        "http-unread",
        "32 connections of HTTP/2 with a window of one byte ask for a file of 16 MiB 64 times each, and send a PING a \
         second",
        "connections",
        attack::HTTP_UNREAD,
    )
    .growth(448.0, "three parts of a response, 64 KiB each, for each of 64 requests on 32 connections, and 64 MiB"),
    Row::new(
        "http3-unacked",
        "4 connections of HTTP/3 ask for a file of 16 MiB 64 times each, and acknowledge nothing",
        "requests",
        attack::HTTP3_UNACKED,
    )
    .growth(
        64.0,
        "bytes of HTTP/3 that are not acknowledged, 4 MiB, and a part of a response, 64 KiB, for each of 64 requests, on \
         4 connections",
    ),
    Row::new(
        "http3-resets",
        "9 connections of HTTP/3 open request streams, send a head or a byte of it, and reset them, at full speed",
        "requests",
        attack::HTTP3_RESETS,
    ),
    Row::new(
        "http3-frames",
        "9 connections of HTTP/3 send field sections with references into an empty table, with endless lengths, with \
         65,000 fields, with Huffman codes, without an end, and behind unknown frames; and unknown frames, entries and \
         cancellations on control and QPACK streams",
        "frames",
        attack::HTTP3_FRAMES,
    )
    .growth(
        128.0,
        "`http.limits.streams`: 100 frames of 64 KiB at most for each of 9 connections, and two streams that are not \
         read, 1 MiB each",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_by_their_names_which_differ() {
        for row in ROWS {
            let found = Row::named(row.name).expect("a row");
            assert_eq!((found.name, found.summary), (row.name, row.summary));
            assert!(row.growth_mib > 0.0 && !row.pairs.is_empty(), "{}", row.name);
        }
        let error = Row::named("slow").expect_err("no row");
        assert!(error.contains("slowloris, tls-half"), "{error}");
    }
}
