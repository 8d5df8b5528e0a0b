//! PTO filter: one probe for each probe timeout in place of two.
//!
//! At a probe timeout the library sends two packets with nothing but a PING at once. RFC 9002, section 6.2.4, asks for
//! one ack-eliciting packet and permits the second. Behind a policer with one token left the second takes the token
//! that the retransmission would need a round trip later, and since the timers repeat, it does so for ever. So only the
//! second leaves: its acknowledgement shows that the first is lost.
//!
//! Only a batch of datagrams of one size counts, each of at most [`TINY`] bytes:
//! - Within a batch nothing new arrives, so a packet that is not full takes all there is to send: acknowledgements,
//!   data and control frames. Another one after it has no content but a PING.
//! - Without segmentation offload both probes leave: nothing shows that they belong together.

use noq_udp::Transmit;

/// Upper bound of the bytes of a datagram with nothing but a PING: one byte of flags, a connection ID of eight, four of
/// packet number, the frame, and a tag of 16.
const TINY: usize = 30;

/// Returns the second datagram if all of a batch hold nothing but a PING.
///
/// Its acknowledgement shows that the first is lost; padding behind the two elicits none.
pub(in crate::quic) fn probe<'a>(transmit: &Transmit<'a>) -> Option<&'a [u8]> {
    let (size, length) = (transmit.segment_size?, transmit.contents.len());
    let are_tiny = 0 < size && size <= TINY && size < length && length.is_multiple_of(size);
    are_tiny.then(|| transmit.contents.get(size..2 * size)).flatten()
}

/// A part of a batch as a batch of its own.
pub(in crate::quic) fn part<'a>(transmit: &Transmit<'a>, contents: &'a [u8]) -> Transmit<'a> {
    Transmit {
        destination: transmit.destination,
        ecn: transmit.ecn,
        contents,
        segment_size: transmit.segment_size.filter(|size| *size < contents.len()),
        src_ip: transmit.src_ip,
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    /// The part that leaves of `length` bytes in segments of this size, each byte being its index.
    fn sent(length: u8, segment_size: Option<usize>) -> (Vec<u8>, Option<usize>) {
        let contents: Vec<u8> = (0..length).collect();
        let transmit = Transmit {
            destination: SocketAddr::from(([10, 0, 0, 1], 2)),
            ecn: None,
            contents: &contents,
            segment_size,
            src_ip: None,
        };
        let sent = probe(&transmit).map_or_else(|| transmit.clone(), |probe| part(&transmit, probe));
        (sent.contents.to_vec(), sent.segment_size)
    }

    #[test]
    fn the_second_of_two_probes_is_sent() {
        for length in [58, 87] {
            assert_eq!(sent(length, Some(29)), ((29..58).collect(), None));
        }
    }

    #[test]
    fn a_batch_without_a_second_probe_is_sent() {
        let cases = [(62, Some(31)), (50, Some(29)), (29, Some(29)), (29, None), (0, Some(0))];
        for (length, segment_size) in cases {
            assert_eq!(sent(length, segment_size), ((0..length).collect(), segment_size));
        }
    }
}
