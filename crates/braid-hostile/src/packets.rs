//! Encoder of MQTT packets as bytes. The broker's own codec would refuse most of them.

/// PINGREQ.
pub(crate) const PINGREQ: [u8; 2] = [0xc0, 0];

const CONNECT: u8 = 0x10;
const PUBLISH: u8 = 0x30;
const SUBSCRIBE: u8 = 0x82;
const UNSUBSCRIBE: u8 = 0xa2;
/// Property identifiers.
const SUBSCRIPTION_IDENTIFIER: u8 = 0x0b;
const SESSION_EXPIRY: u8 = 0x11;
const USER_PROPERTY: u8 = 0x26;

/// A CONNECT to encode; Keep Alive is off.
#[derive(Clone, Debug)]
pub(crate) struct Connect<'a> {
    pub(crate) client_id: &'a str,
    /// 4 or 5.
    pub(crate) version: u8,
    pub(crate) is_clean: bool,
    /// Properties of MQTT 5.
    pub(crate) properties: Vec<u8>,
    /// User name and password.
    pub(crate) login: Option<(&'a str, &'a str)>,
}

impl<'a> Connect<'a> {
    /// MQTT 5 with Clean Start.
    pub(crate) fn new(client_id: &'a str) -> Self {
        Self { client_id, version: 5, is_clean: true, properties: Vec::new(), login: None }
    }

    /// A session that is resumed, and that outlives the connection by this time.
    pub(crate) fn resuming(client_id: &'a str, expiry_seconds: u32) -> Self {
        let mut properties = vec![SESSION_EXPIRY];
        properties.extend_from_slice(&expiry_seconds.to_be_bytes());
        Self { client_id, version: 5, is_clean: false, properties, login: None }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        push_string(&mut body, "MQTT");
        let flags = if self.is_clean { 2 } else { 0 } | if self.login.is_some() { 0xC0 } else { 0 };
        body.extend_from_slice(&[self.version, flags, 0, 0]);
        if self.version >= 5 {
            push_properties(&mut body, &self.properties);
        }
        push_string(&mut body, self.client_id);
        for text in self.login.iter().flat_map(|(user, password)| [user, password]) {
            push_string(&mut body, text);
        }
        packet(CONNECT, &body)
    }
}

/// A PUBLISH to encode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Publish<'a> {
    pub(crate) topic: &'a str,
    pub(crate) qos: u8,
    pub(crate) retain: bool,
    pub(crate) packet_id: u16,
    /// `None` before MQTT 5.
    pub(crate) properties: Option<&'a [u8]>,
    pub(crate) payload: &'a [u8],
}

impl<'a> Publish<'a> {
    /// MQTT 5, QoS 0.
    pub(crate) fn new(topic: &'a str, payload: &'a [u8]) -> Self {
        Self { topic, qos: 0, retain: false, packet_id: 0, properties: Some(&[]), payload }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let body = self.body();
        packet(self.first_byte(), &body)
    }

    /// The beginning of a packet that claims to have `remaining` bytes behind its fixed header.
    pub(crate) fn encode_claiming(&self, remaining: u32) -> Vec<u8> {
        let mut bytes = fixed_header(self.first_byte(), remaining);
        bytes.extend_from_slice(&self.body());
        bytes
    }

    fn first_byte(&self) -> u8 {
        PUBLISH | self.qos << 1 | u8::from(self.retain)
    }

    fn body(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(self.topic.len() + self.payload.len() + 16);
        push_string(&mut body, self.topic);
        if self.qos > 0 {
            body.extend_from_slice(&self.packet_id.to_be_bytes());
        }
        if let Some(properties) = self.properties {
            push_properties(&mut body, properties);
        }
        body.extend_from_slice(self.payload);
        body
    }
}

/// SUBSCRIBE of MQTT 5 for QoS `qos`.
pub(crate) fn subscribe<'a>(
    packet_id: u16,
    properties: &[u8],
    filters: impl IntoIterator<Item = &'a str>,
    qos: u8,
) -> Vec<u8> {
    let mut body = packet_id.to_be_bytes().to_vec();
    push_properties(&mut body, properties);
    for filter in filters {
        push_string(&mut body, filter);
        body.push(qos);
    }
    packet(SUBSCRIBE, &body)
}

/// UNSUBSCRIBE of MQTT 5.
pub(crate) fn unsubscribe<'a>(packet_id: u16, filters: impl IntoIterator<Item = &'a str>) -> Vec<u8> {
    let mut body = packet_id.to_be_bytes().to_vec();
    push_properties(&mut body, &[]);
    for filter in filters {
        push_string(&mut body, filter);
    }
    packet(UNSUBSCRIBE, &body)
}

/// Property with a Subscription Identifier, 1 to 268,435,455.
pub(crate) fn subscription_identifier(number: u32) -> Vec<u8> {
    let mut bytes = vec![SUBSCRIPTION_IDENTIFIER];
    push_varint(&mut bytes, number);
    bytes
}

/// `count` User Properties with names and values of one letter.
pub(crate) fn user_properties(count: usize) -> Vec<u8> {
    [USER_PROPERTY, 0, 1, b'n', 0, 1, b'v'].repeat(count)
}

pub(crate) fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = fixed_header(first, length(body.len()));
    bytes.extend_from_slice(body);
    bytes
}

/// First byte and Remaining Length.
fn fixed_header(first: u8, remaining: u32) -> Vec<u8> {
    let mut bytes = vec![first];
    push_varint(&mut bytes, remaining);
    bytes
}

fn push_properties(out: &mut Vec<u8>, properties: &[u8]) {
    push_varint(out, length(properties.len()));
    out.extend_from_slice(properties);
}

/// Appends at most 65,535 bytes of a string.
fn push_string(out: &mut Vec<u8>, text: &str) {
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&text.as_bytes()[..length.into()]);
}

/// Variable Byte Integer (MQTT 5, 1.5.5).
fn push_varint(out: &mut Vec<u8>, mut value: u32) {
    loop {
        let digit = (value % 128) as u8;
        value /= 128;
        out.push(if value > 0 { digit | 0x80 } else { digit });
        if value == 0 {
            return;
        }
    }
}

fn length(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Byte by byte, since an attack with a broken packet tests the refusal of garbage and nothing else.
    #[test]
    fn packets_are_those_of_the_standard() {
        let long = "a".repeat(70_000);
        let claimed = Publish { retain: true, ..Publish::new("t", b"") }.encode_claiming(268_435_455);
        for (found, expected) in [
            (Connect::new("c").encode(), &b"\x10\x0e\0\x04MQTT\x05\x02\0\0\0\0\x01c"[..]),
            (Connect { version: 4, ..Connect::new("c") }.encode(), b"\x10\x0d\0\x04MQTT\x04\x02\0\0\0\x01c"),
            (Connect::resuming("c", 7).encode(), b"\x10\x13\0\x04MQTT\x05\0\0\0\x05\x11\0\0\0\x07\0\x01c"),
            (Publish::new("t", b"p").encode(), b"\x30\x05\0\x01t\0p"),
            (
                Publish { qos: 2, packet_id: 258, properties: None, ..Publish::new("t", b"p") }.encode(),
                b"\x34\x06\0\x01t\x01\x02p",
            ),
            (claimed, b"\x31\xff\xff\xff\x7f\0\x01t\0"),
            (
                subscribe(1, &subscription_identifier(200), ["a", "b"], 1),
                b"\x82\x0e\0\x01\x03\x0b\xc8\x01\0\x01a\x01\0\x01b\x01",
            ),
            (unsubscribe(1, ["a"]), b"\xa2\x06\0\x01\0\0\x01a"),
            (user_properties(1), b"\x26\0\x01n\0\x01v"),
        ] {
            assert_eq!(found, expected, "{found:02x?}");
        }
        assert_eq!(Publish::new(&long, b"").encode()[..6], [0x30, 0x82, 0x80, 0x04, 0xff, 0xff]);
    }
}
