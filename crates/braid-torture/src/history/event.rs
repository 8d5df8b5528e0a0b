//! Lines of a history: one JSON object for each event that a client or the harness saw.

use std::borrow::Cow;

use braid_proto::packet::QoS;
use serde::{Deserialize, Serialize};

/// Event with its time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line<'a> {
    /// Nanoseconds of the machine's monotonic clock. Times of one file never go back.
    pub t: u64,
    /// Event, with its name in the field `kind`.
    #[serde(flatten, borrow)]
    pub event: Event<'a>,
}

/// Quality of Service, 0 to 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u8")]
pub struct Qos(u8);

impl Qos {
    /// Level of a Will whose event names none.
    const AT_LEAST_ONCE: Self = Self(1);

    /// Level as MQTT writes it.
    pub fn level(self) -> u8 {
        self.0
    }

    fn at_least_once() -> Self {
        Self::AT_LEAST_ONCE
    }
}

impl From<QoS> for Qos {
    fn from(qos: QoS) -> Self {
        Self(qos.bits())
    }
}

impl TryFrom<u8> for Qos {
    type Error = String;

    fn try_from(level: u8) -> Result<Self, String> {
        if level <= 2 { Ok(Self(level)) } else { Err(format!("QoS {level}: use 0, 1 or 2")) }
    }
}

/// Half of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The fault is injected.
    #[serde(alias = "start")]
    Begin,
    /// The fault is over: the process runs, the link is up.
    #[serde(alias = "stop")]
    End,
}

/// Event of a history.
///
/// `client` is the Client Identifier, `conn` a name that no other connection of the history has, `id` the payload's
/// `<publisher>:<number>`. Events of what a client sends are written before it is sent, events of what it receives
/// afterwards. Unknown fields are ignored.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[expect(missing_docs, reason = "fields are named as in MQTT, and described at the enum and its variants")]
pub enum Event<'a> {
    /// CONNECT. `clean`: Clean Start. `expiry`: Session Expiry Interval in seconds, without it longer than the run.
    Connect {
        client: Cow<'a, str>,
        conn: Cow<'a, str>,
        #[serde(default)]
        node: Option<Cow<'a, str>>,
        clean: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expiry: Option<u32>,
    },
    /// Will in the CONNECT of a connection. `delay`: Will Delay Interval in seconds. `qos`: 1 without it.
    Will {
        client: Cow<'a, str>,
        conn: Cow<'a, str>,
        id: Cow<'a, str>,
        topic: Cow<'a, str>,
        #[serde(default)]
        delay: u32,
        #[serde(default = "Qos::at_least_once")]
        qos: Qos,
    },
    /// CONNACK. `node`: the node that has the connection. `present`: Session Present.
    Connack { client: Cow<'a, str>, conn: Cow<'a, str>, node: Cow<'a, str>, present: bool, reason: u8 },
    /// DISCONNECT of the client with reason 0x00, by which the Will is discarded.
    Disconnect { client: Cow<'a, str>, conn: Cow<'a, str> },
    /// End of a connection. `reason`: that of the server's DISCONNECT.
    Closed { client: Cow<'a, str>, conn: Cow<'a, str>, reason: Option<u8> },
    /// PUBLISH of the client. `pid`: Packet Identifier. `empty`: no payload, which removes the retained message.
    Publish {
        client: Cow<'a, str>,
        conn: Cow<'a, str>,
        topic: Cow<'a, str>,
        qos: Qos,
        id: Cow<'a, str>,
        pid: Option<u16>,
        dup: bool,
        retain: bool,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        empty: bool,
    },
    /// PUBREC without error.
    Pubrec { client: Cow<'a, str>, conn: Cow<'a, str>, id: Cow<'a, str> },
    /// PUBACK, PUBCOMP, or a PUBREC with an error. A `reason` from 128 is an error.
    Acked { client: Cow<'a, str>, conn: Cow<'a, str>, id: Cow<'a, str>, reason: u8 },
    /// SUBSCRIBE with one filter.
    Subscribe { client: Cow<'a, str>, conn: Cow<'a, str>, filter: Cow<'a, str>, qos: Qos },
    /// SUBACK for one filter: granted QoS, or an error from 128.
    Subscribed { client: Cow<'a, str>, conn: Cow<'a, str>, filter: Cow<'a, str>, reason: u8 },
    /// PUBLISH of the server.
    Delivered {
        client: Cow<'a, str>,
        conn: Cow<'a, str>,
        topic: Cow<'a, str>,
        qos: Qos,
        id: Cow<'a, str>,
        pid: Option<u16>,
        dup: bool,
        retain: bool,
    },
    /// The subscriber has sent PUBACK, or PUBCOMP after PUBREL.
    DeliveryDone { client: Cow<'a, str>, conn: Cow<'a, str>, id: Cow<'a, str> },
    /// Fault of the harness. `on`: the process or link that has it.
    Fault { name: Cow<'a, str>, on: Cow<'a, str>, phase: Phase },
    /// Regular end of a file: its writer was not killed.
    End {},
}
