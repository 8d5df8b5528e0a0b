//! The generator against a small broker with faults, each of which it has to detect.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use super::packets::{PUBACK, read_packets};
use super::{FlowResult, run};
use crate::case::{Flow, Shape};

/// Fault of the broker at the message after the tenth.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    Nothing,
    Drops,
    /// Drops the 39 messages behind it as well: more than a window.
    DropsMany,
    ChangesTheTopic,
    Repeats,
    ChangesTheLastByte,
    SetsRetain,
    AcknowledgesAnother,
}

/// Complete packets of one read of `socket`, each with its first byte; none when the client has left.
fn packets(socket: &mut TcpStream, carry: &mut Vec<u8>) -> Vec<(u8, Vec<u8>)> {
    let (mut buffer, mut seen) = (vec![0; 1 << 16], Vec::new());
    while seen.is_empty() {
        let each = |packet: &super::packets::Packet<'_>| {
            seen.push((packet.first, packet.body.to_vec()));
            Ok(())
        };
        if read_packets(socket, &mut buffer, carry, each).is_err() {
            break;
        }
    }
    seen
}

/// Takes one subscriber, then one publisher, and passes messages on until the publisher leaves.
fn serve(listener: &TcpListener, fault: Fault) {
    let accept = || listener.accept().expect("a client").0;
    let (mut subscriber, mut carry) = (accept(), Vec::new());
    assert_eq!(packets(&mut subscriber, &mut carry)[0].0, 0x10);
    subscriber.write_all(&[0x20, 2, 0, 0]).expect("CONNACK");
    let (_, subscribe) = packets(&mut subscriber, &mut carry).remove(0);
    let qos = *subscribe.last().expect("a SUBSCRIBE has a QoS");
    subscriber.write_all(&[0x90, 3, 0, 1, qos]).expect("SUBACK");
    let mut acks = subscriber.try_clone().expect("clone");
    let reader = thread::spawn(move || while acks.read(&mut [0; 1024]).is_ok_and(|read| read > 0) {});
    let (mut publisher, mut carry) = (accept(), Vec::new());
    assert_eq!(packets(&mut publisher, &mut carry)[0].0, 0x10);
    publisher.write_all(&[0x20, 2, 0, 0]).expect("CONNACK");
    let mut count = 0;
    loop {
        let batch = packets(&mut publisher, &mut carry);
        if batch.is_empty() {
            break;
        }
        let (mut onward, mut back) = (Vec::new(), Vec::new());
        for (mut first, mut body) in batch {
            count += 1;
            let last = if fault == Fault::DropsMany { 50 } else { 11 };
            let fault = if (11..=last).contains(&count) { fault } else { Fault::Nothing };
            let topic = usize::from(body[1]);
            let skew = u8::from(fault == Fault::AcknowledgesAnother);
            if qos > 0 {
                back.extend([PUBACK, 2, body[2 + topic], body[3 + topic] ^ skew]);
            }
            match fault {
                Fault::ChangesTheLastByte => body.last_mut().into_iter().for_each(|byte| *byte ^= 1),
                Fault::ChangesTheTopic => body[1 + topic] ^= 1,
                Fault::SetsRetain => first |= 1,
                _ => {}
            }
            let copies = match fault {
                Fault::Drops | Fault::DropsMany => 0,
                Fault::Repeats => 2,
                _ => 1,
            };
            for _ in 0..copies {
                onward.extend([first, u8::try_from(body.len()).expect("short")]);
                onward.extend_from_slice(&body);
            }
        }
        // A generator that found a fault may have left; the test looks at its report.
        let _ = subscriber.write_all(&onward).and_then(|()| publisher.write_all(&back));
    }
    let _ = subscriber.shutdown(std::net::Shutdown::Both);
    reader.join().expect("reader");
}

/// A short run against a broker with this fault.
fn against(fault: Fault, qos: u8, pace: Option<u32>) -> Result<FlowResult, String> {
    against_for(Duration::from_millis(100), fault, qos, pace)
}

/// A run of this length against a broker with this fault.
fn against_for(measured: Duration, fault: Fault, qos: u8, pace: Option<u32>) -> Result<FlowResult, String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address: SocketAddr = listener.local_addr().expect("its address");
    let broker = thread::spawn(move || serve(&listener, fault));
    let flow = Flow { shape: Shape::Pairs(1), qos, payload: 64, window: 20, pace, topics: 4 };
    let flowed = run(&flow, address, std::process::id(), Duration::ZERO, measured);
    broker.join().expect("the broker checks too");
    flowed
}

#[test]
fn an_honest_broker_is_measured() {
    let second = Duration::from_secs(1);
    thread::scope(|scope| {
        for (qos, pace) in [(0, None), (1, None), (0, Some(1000)), (1, Some(1000))] {
            scope.spawn(move || {
                let flowed = against_for(second, Fault::Nothing, qos, pace).expect("measured");
                assert!(flowed.delivered > 20, "{flowed:?}");
                assert!(flowed.delivered <= flowed.expected && flowed.lost == 0, "{flowed:?}");
                assert!(flowed.p50_microseconds <= flowed.p99_microseconds, "{flowed:?}");
                if pace.is_some() {
                    assert!((900..=1900).contains(&flowed.expected), "1,000/s for 1 s and a bit: {flowed:?}");
                }
            });
        }
    });
}

#[test]
fn a_lost_message_is_counted_and_for_qos_1_an_error() {
    assert_eq!(against_for(Duration::from_secs(1), Fault::Drops, 0, None).expect("allowed").lost, 1);
    let reason = against_for(Duration::from_secs(1), Fault::Drops, 1, None).expect_err("QoS 1 loses nothing");
    assert!(reason.contains("1 were lost and 0 not acknowledged"), "{reason}");
}

#[test]
fn a_wrong_message_is_an_error() {
    let expected = [
        (Fault::Repeats, 0, "again"),
        (Fault::ChangesTheLastByte, 0, "payload"),
        (Fault::ChangesTheTopic, 0, "topic"),
        (Fault::SetsRetain, 0, "first byte 0x31"),
        (Fault::AcknowledgesAnother, 1, "PUBACK"),
    ];
    for (fault, qos, word) in expected {
        let reason = against(fault, qos, None).expect_err(word);
        assert!(reason.contains(word), "{reason}");
    }
}

#[test]
fn a_window_full_of_lost_messages_opens_again() {
    let measured = 4 * super::publishers::LOST_AFTER;
    let flowed = against_for(measured, Fault::DropsMany, 0, None).expect("QoS 0 may be lost");
    assert_eq!(flowed.lost, 40, "{flowed:?}");
    assert!(flowed.delivered > 10, "{flowed:?}");
}
