use std::ops::{Index, IndexMut};
use std::time::Duration;

use super::lines::elapsed;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// Counters, in the order in which they are printed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Counter {
            $($(#[$doc])* $name,)*
        }

        impl Counter {
            /// All of them, in order.
            pub const ALL: [Self; [$($text),*].len()] = [$(Self::$name),*];

            /// The name in lines, in Prometheus and in JSON.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

counters! {
    /// Milliseconds of end-to-end latency, summed over the messages received with a `ts` header.
    PublishLatency = "publish_latency";
    /// Messages received.
    Recv = "recv";
    /// Clients whose subscriptions were granted.
    Sub = "sub";
    /// Clients whose subscriptions were not, and those that could not connect to subscribe.
    SubFail = "sub_fail";
    /// Messages published: of QoS 0 those that the transport took, of QoS 1 and 2 those acknowledged.
    Pub = "pub";
    /// Messages that could not be published, with those that were queued when the connection ended.
    PubFail = "pub_fail";
    /// Messages that were due before the one before was done.
    PubOverrun = "pub_overrun";
    /// Messages of QoS 1 and 2 acknowledged by PUBACK or PUBCOMP.
    PubSucc = "pub_succ";
    /// Messages of QoS 1 without a subscriber, by the server's reason code 0x10.
    PubNosub = "pub_nosub";
    /// Connections made.
    ConnectSucc = "connect_succ";
    /// Connections given up.
    ConnectFail = "connect_fail";
    /// Attempts to connect that were repeated.
    ConnectRetried = "connect_retried";
    /// Connections made again.
    ReconnectSucc = "reconnect_succ";
    /// QUIC: the server cannot be reached.
    Unreachable = "unreachable";
    /// QUIC: the server refused.
    ConnectionRefused = "connection_refused";
    /// QUIC: the handshake took too long.
    ConnectionTimeout = "connection_timeout";
    /// QUIC: the connection was idle too long.
    ConnectionIdle = "connection_idle";
}

/// The counters of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters([u64; Counter::ALL.len()]);

impl Index<Counter> for Counters {
    type Output = u64;

    fn index(&self, counter: Counter) -> &u64 {
        &self.0[counter as usize]
    }
}

impl IndexMut<Counter> for Counters {
    fn index_mut(&mut self, counter: Counter) -> &mut u64 {
        &mut self.0[counter as usize]
    }
}

impl Counters {
    /// Adds what others have counted.
    pub fn add(&mut self, others: &Self) {
        self.0.iter_mut().zip(&others.0).for_each(|(count, other)| *count += other);
    }

    /// Every counter with its value, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Counter, u64)> {
        Counter::ALL.into_iter().map(|counter| (counter, self[counter]))
    }
}

/// The lines of once a second.
#[derive(Debug, Default)]
pub struct CounterLines {
    printed: Counters,
    at: [Duration; Counter::ALL.len()],
}

impl CounterLines {
    /// A line for each counter that changed, as `1m2s pub total=8 rate=2.84/sec`, and for the latency the average
    /// of the messages received since, as `3s publish_latency avg=12ms`. `at` is since the start of the run and
    /// does not go back.
    ///
    /// A rate is over the time since the counter's own line before, so it is small after a silence.
    pub fn lines(&mut self, at: Duration, counters: &Counters) -> Vec<String> {
        let received = counters[Counter::Recv].saturating_sub(self.printed[Counter::Recv]);
        let mut lines = Vec::new();
        for (counter, total) in counters.iter() {
            let before = self.printed[counter];
            let since = &mut self.at[counter as usize];
            let millis = at.saturating_sub(*since).as_millis();
            // Without a time there is no rate; the change is not lost, it shows in the next line.
            if total == before || millis == 0 {
                continue;
            }
            let (name, step) = (counter.name(), total.saturating_sub(before));
            if counter != Counter::PublishLatency {
                let rate = per_second(step, millis);
                lines.push(format!("{} {name} total={total} rate={rate:.2}/sec", elapsed(at)));
            } else if let Some(average) = step.checked_div(received) {
                lines.push(format!("{} {name} avg={average}ms", elapsed(at)));
            }
            *since = at;
            self.printed[counter] = total;
        }
        lines
    }
}

#[expect(clippy::cast_precision_loss, reason = "two decimals are shown")]
fn per_second(step: u64, millis: u128) -> f64 {
    step as f64 * 1000.0 / millis as f64
}
