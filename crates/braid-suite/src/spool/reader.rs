//! A subscriber that verifies every byte and keeps none.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use super::TOPIC;
use super::pattern::Pattern;
use crate::load::packets::push_puback;
use crate::load::session::{connect, subscribe};

/// Bytes of one read.
const ROOM: usize = 256 * 1024;
/// Time limit of one read.
const LIMIT: Duration = Duration::from_secs(600);

/// A subscribed client.
pub(crate) struct Reader {
    socket: TcpStream,
    pattern: Arc<Pattern>,
    size: u64,
    whole: Arc<AtomicU32>,
    /// Clients whose message is complete.
    seen: HashSet<u32>,
}

/// Position in the stream of packets.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Bytes of a PUBLISH before its payload.
    Head(Vec<u8>),
    /// Offset of the next byte of the payload.
    Payload { client: u32, packet_id: u16, place: u64 },
}

impl Reader {
    /// Subscribes to the topics of all senders, whose payloads have `size` bytes.
    ///
    /// # Errors
    /// The broker refuses.
    pub(crate) fn connect(address: SocketAddr, size: u32, pattern: Arc<Pattern>) -> Result<Self, String> {
        let mut socket = connect(address, "bench-large-reader")?;
        subscribe(&mut socket, &format!("{TOPIC}#"), 1)?;
        socket.set_read_timeout(Some(LIMIT)).map_err(|error| error.to_string())?;
        Ok(Self { socket, pattern, size: size.into(), whole: Arc::default(), seen: HashSet::new() })
    }

    /// Counter of complete messages.
    pub(crate) fn whole(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.whole)
    }

    /// Closure that ends [`read`](Self::read) with an error.
    pub(crate) fn stop(&self) -> impl Fn() + Send + 'static {
        let socket = self.socket.try_clone();
        move || {
            // The connection may have ended.
            let _ = socket.as_ref().map(|socket| socket.shutdown(Shutdown::Both));
        }
    }

    /// Reads and acknowledges the messages of `count` clients, and sends `()` for each to `deliveries`.
    ///
    /// # Errors
    /// The connection ends, a byte differs from the published one, or a message comes again: without DUP it would be
    /// another one.
    pub(crate) fn read(mut self, count: u32, deliveries: &Sender<()>) -> Result<(), String> {
        let mut buffer = vec![0; ROOM];
        let mut step = Step::Head(Vec::new());
        let mut acknowledgements = Vec::new();
        while self.whole.load(Ordering::Relaxed) < count {
            let read = self.socket.read(&mut buffer);
            let read = read.map_err(|error| format!("the reader of large messages: {error}"))?;
            if read == 0 {
                return Err("the broker has closed the connection of the reader".to_owned());
            }
            let mut bytes = &buffer[..read];
            while !bytes.is_empty() {
                step = self.take(step, &mut bytes, &mut acknowledgements, deliveries)?;
            }
            if !acknowledgements.is_empty() {
                let sent = self.socket.write_all(&acknowledgements);
                sent.map_err(|error| format!("the reader cannot acknowledge: {error}"))?;
                acknowledgements.clear();
            }
        }
        Ok(())
    }

    /// Consumes the bytes of one step, or all there are.
    fn take(
        &mut self,
        step: Step,
        bytes: &mut &[u8],
        acknowledgements: &mut Vec<u8>,
        deliveries: &Sender<()>,
    ) -> Result<Step, String> {
        match step {
            Step::Head(mut head) => {
                let Some((first, rest)) = bytes.split_first() else { return Ok(Step::Head(head)) };
                (*bytes, _) = (rest, head.push(*first));
                match parse(&head, self.size)? {
                    None => Ok(Step::Head(head)),
                    Some((client, packet_id)) => Ok(Step::Payload { client, packet_id, place: 0 }),
                }
            }
            Step::Payload { client, packet_id, place } => {
                let left = usize::try_from(self.size - place).unwrap_or(usize::MAX);
                let (now, later) = bytes.split_at(bytes.len().min(left));
                if !self.pattern.matches(client, place, now) {
                    return Err(format!("the payload of client {client} differs near its byte {place}"));
                }
                *bytes = later;
                let place = place + now.len() as u64;
                if place < self.size {
                    return Ok(Step::Payload { client, packet_id, place });
                }
                if !self.seen.insert(client) {
                    return Err(format!("the message of client {client} came again, without DUP"));
                }
                push_puback(acknowledgements, packet_id);
                self.whole.fetch_add(1, Ordering::Relaxed);
                // The receiver is gone when the senders have failed.
                let _ = deliveries.send(());
                Ok(Step::Head(Vec::new()))
            }
        }
    }
}

/// Client and packet identifier of a PUBLISH; `None` while bytes before its payload are missing.
fn parse(head: &[u8], size: u64) -> Result<Option<(u32, u16)>, String> {
    let Some((first, mut rest)) = head.split_first() else { return Ok(None) };
    if *first != 0x32 {
        return Err(format!("a packet that begins with {first:#x} was not published"));
    }
    let mut length = 0_u64;
    for shift in [0, 7, 14, 21] {
        let Some((digit, behind)) = rest.split_first() else { return Ok(None) };
        rest = behind;
        length |= u64::from(digit & 0x7f) << shift;
        if digit & 0x80 == 0 {
            break;
        }
    }
    let Some((topic_len, rest)) = rest.split_first_chunk::<2>() else { return Ok(None) };
    let topic_len = u16::from_be_bytes(*topic_len);
    let Some((topic, rest)) = rest.split_at_checked(topic_len.into()) else { return Ok(None) };
    let Some(packet_id) = rest.first_chunk::<2>() else { return Ok(None) };
    let topic = String::from_utf8_lossy(topic);
    let client = topic.strip_prefix(TOPIC).and_then(|client| client.parse().ok());
    let client = client.ok_or_else(|| format!("{topic} was not published"))?;
    if length != size + u64::from(topic_len) + 4 {
        return Err(format!("the PUBLISH of client {client} has a Remaining Length of {length}"));
    }
    Ok(Some((client, u16::from_be_bytes(*packet_id))))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::sync::mpsc;

    use super::*;
    use crate::load::packets::publish_head;

    fn reader() -> (Reader, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        let socket = TcpStream::connect(listener.local_addr().expect("address")).expect("connects");
        let (peer, _) = listener.accept().expect("a client");
        let (pattern, whole, seen) = (Arc::new(Pattern::new()), Arc::default(), HashSet::new());
        (Reader { socket, pattern, size: 5_000, whole, seen }, peer)
    }

    fn message(pattern: &Pattern, client: u32) -> Vec<u8> {
        let mut bytes = publish_head(&format!("{TOPIC}{client}"), 7, 5_000);
        bytes.extend_from_slice(&pattern.at(client, 0)[..5_000]);
        bytes
    }

    #[test]
    fn every_message_is_verified_and_acknowledged() {
        let (reader, mut peer) = reader();
        let whole = reader.whole();
        let bytes = [message(&reader.pattern, 1), message(&reader.pattern, 2)].concat();
        peer.write_all(&bytes).expect("sent");
        let (sender, deliveries) = mpsc::channel();
        reader.read(2, &sender).expect("all as it was sent");
        assert_eq!((whole.load(Ordering::Relaxed), deliveries.try_iter().count()), (2, 2));
        let mut acknowledgements = Vec::new();
        peer.read_to_end(&mut acknowledgements).expect("read");
        assert_eq!(acknowledgements, [0x40, 2, 0, 7, 0x40, 2, 0, 7]);
    }

    #[test]
    fn a_message_that_comes_again_is_no_message_of_another_client() {
        let (reader, mut peer) = reader();
        let whole = reader.whole();
        peer.write_all(&[message(&reader.pattern, 1), message(&reader.pattern, 1)].concat()).expect("sent");
        let wrong = reader.read(2, &mpsc::channel().0).expect_err("only one client");
        assert!(wrong.contains("client 1 came again"), "{wrong}");
        assert_eq!(whole.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn bytes_that_differ_from_the_published_ones_are_reported() {
        for (at, changed, why) in [
            (4_000, 1, "differs"),
            (0, 0x10, "begins with"),
            (1, 1, "Remaining Length"),
            (5, 1, "not published"),
        ] {
            let (reader, mut peer) = reader();
            let mut bytes = message(&reader.pattern, 1);
            bytes[at] ^= changed;
            peer.write_all(&bytes).expect("sent");
            drop(peer);
            let wrong = reader.read(1, &mpsc::channel().0).expect_err("something was changed");
            assert!(wrong.contains(why), "{at}: {wrong}");
        }
    }
}
