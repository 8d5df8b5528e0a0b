//! Case `drain`: messages fill the queue of a client that is away; it resumes its session and reads all of them.

use std::path::Path;

use braid_measure::process::{CpuReading, CpuShares, written};
use serde::Serialize;

use super::publishers::Publishers;
use super::{Amount, Row, Setup};
use crate::brokers::Broker;
use crate::load::packets::Publish;
use crate::load::payload;
use crate::load::session::{leave_session, take_queue};
use crate::system::of_broker;

/// Bytes of a payload.
const PAYLOAD: usize = 256;
/// Unacknowledged messages of the publisher that fills the queue, below every broker's limit.
const FILLING: u32 = 512;
/// Client of the session.
const CLIENT: &str = "bench-away";

/// Measurements of one round.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct DrainRound {
    /// Messages per second from CONNECT to the last one.
    pub(crate) rate: f64,
    /// Time from CONNECT to the first message.
    pub(crate) first_milliseconds: f64,
    pub(crate) cpu_nanoseconds: f64,
    /// Processor time per message while the queue was filled.
    pub(crate) fill_nanoseconds: f64,
    /// Bytes written to the device per message.
    pub(crate) written: f64,
    pub(crate) shares: CpuShares,
}

/// Measures every broker, in turns.
///
/// # Errors
/// A broker does not start, or loses, repeats or reorders messages.
pub(crate) fn run(setup: &Setup<'_>) -> Result<Vec<Row<DrainRound>>, String> {
    let messages = setup.args.queued;
    let once = |broker: &Broker| once(&setup.directory, broker, messages);
    let line = |drained: &DrainRound| format!("{:.0}/s", drained.rate);
    setup.rounds("drain", Amount::Messages(messages), || setup.wait_for_quiet(), once, line)
}

fn once(directory: &Path, broker: &Broker, messages: u64) -> Result<DrainRound, String> {
    let running = broker.start_in(directory)?;
    let pid = running.pid();
    leave_session(running.address, CLIENT, "bench/+")?;
    let mut publishers = Publishers::connect(running.address, FILLING, PAYLOAD)?;
    let written = || of_broker(written(pid));
    let empty = of_broker(CpuReading::of(pid))?;
    publishers.publish_all(messages)?;
    drop(publishers);
    let (before, bytes) = (of_broker(CpuReading::of(pid))?, written()?);
    let mut order = Order::default();
    let (first, all) = take_queue(running.address, CLIENT, messages, |publish| order.check(publish))?;
    let shares = of_broker(CpuReading::of(pid))?.since(&before);
    let fill = before.since(&empty);
    Ok(DrainRound {
        rate: messages as f64 / all.as_secs_f64(),
        first_milliseconds: first.as_secs_f64() * 1e3,
        cpu_nanoseconds: shares.broker_nanoseconds() / messages as f64,
        fill_nanoseconds: fill.broker_nanoseconds() / messages as f64,
        written: (written()? - bytes) as f64 / messages as f64,
        shares,
    })
}

/// Expected sequence numbers by publisher.
#[derive(Default)]
struct Order(Vec<u32>);

impl Order {
    /// Checks that a message is the next one of its publisher.
    fn check(&mut self, publish: &Publish<'_>) -> Result<(), String> {
        let stamp = payload::read(publish.payload, &payload::blank(PAYLOAD))
            .ok_or_else(|| "got a payload that was not sent".to_owned())?;
        let publisher = stamp.publisher as usize;
        if self.0.len() <= publisher {
            self.0.resize(publisher + 1, 0);
        }
        let next = &mut self.0[publisher];
        if stamp.sequence != *next {
            let got = stamp.sequence;
            return Err(format!("got message {got} of publisher {publisher}, and {next} was next"));
        }
        *next += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Order, PAYLOAD};
    use crate::load::packets::{PublishTemplate, split_packet};
    use crate::load::payload::Stamp;

    fn check(order: &mut Order, publisher: u32, sequence: u32) -> Result<(), String> {
        let mut bytes = Vec::new();
        let stamp = Stamp { due: 0, publisher, sequence };
        PublishTemplate::new("bench/00", 1, PAYLOAD).push(&mut bytes, 7, stamp);
        let (packet, _) = split_packet(&bytes)?.ok_or("half a packet")?;
        order.check(&packet.publish().ok_or("not a PUBLISH")?)
    }

    #[test]
    fn each_publisher_has_an_order_of_its_own() {
        let mut order = Order::default();
        assert_eq!(check(&mut order, 1, 0), Ok(()));
        assert!(check(&mut order, 0, 0).is_ok() && check(&mut order, 1, 1).is_ok());
    }

    #[test]
    fn a_missing_or_repeated_message_is_noticed() {
        let mut order = Order::default();
        assert!(check(&mut order, 0, 1).is_err_and(|reason| reason.contains("0 was next")));
        assert!(check(&mut order, 0, 0).is_ok());
        assert!(check(&mut order, 0, 0).is_err_and(|reason| reason.contains("1 was next")));
    }
}
