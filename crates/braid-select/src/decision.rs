//! Decisions and their reasons, as events.

use std::fmt;
use std::time::Duration;

use crate::cost::{Cost, Path};
use crate::key::Key;
use crate::protocol::Protocol;

/// Change of the protocol that is chosen for a network and an origin. Displayed as one line that says why.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Time of the change, since the epoch of the caller.
    pub when: Duration,
    /// Network and origin.
    pub key: Key,
    /// Protocol so far.
    pub from: Protocol,
    /// Protocol from now on.
    pub to: Protocol,
    /// Reason, with the numbers that decided.
    pub reason: Reason,
}

/// Comparison of the costs of both protocols on one path.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    /// Cost over TCP.
    pub tcp: Cost,
    /// Cost over QUIC.
    pub quic: Cost,
    /// Path on which they are based, as it was measured.
    pub path: Path,
    /// Protocol that measured the path.
    pub measured_by: Protocol,
    /// Time for which the difference was large enough.
    pub lasted: Duration,
}

/// Reason of a decision.
#[derive(Clone, Copy, Debug)]
pub enum Reason {
    /// Predictions say that QUIC costs less.
    QuicCostsLess(Comparison),
    /// Predictions say that QUIC costs more.
    QuicCostsMore(Comparison),
    /// QUIC works again after a failure.
    QuicWorks,
    /// A QUIC handshake failed.
    HandshakeFailed,
    /// UDP packets of the network no longer arrive.
    UdpBlackHole,
    /// Probe timeouts of a QUIC connection went unanswered while the peer's network answered over TCP.
    ProbeTimeouts {
        /// Timeouts one after the other.
        count: u32,
        /// Time since the network's last acknowledgement over TCP.
        tcp_answered: Duration,
    },
    /// QUIC was advertised, but the network used TCP only.
    NotUsed {
        /// Time since the advertisement, or since the last use of QUIC.
        unused: Duration,
        /// TCP packets since then.
        packets: u64,
    },
    /// Rule of autoquic: a TCP connection had retransmissions, or a slow start threshold below half of its largest.
    CompatLoss {
        /// Retransmissions of the connection.
        total_retrans: u64,
        /// Slow start threshold in segments.
        snd_ssthresh: u32,
        /// Largest slow start threshold of the connection.
        max_ssthresh: u32,
    },
    /// Rule of autoquic: packets sent exceed the largest packet number received by 60 or less after 30 s.
    CompatPackets {
        /// Packets sent.
        sent: u64,
        /// Largest packet number received.
        largest_received: u64,
    },
}

/// Implements the names of reasons: for each variant the protocol that it leads to, and its name.
macro_rules! names {
    ($($reason:pat => $to:ident, $name:literal;)+) => {
        impl Reason {
            /// Names of all reasons, with the protocol that they lead to.
            pub const NAMES: &[(Protocol, &str)] = &[$((Protocol::$to, $name)),+];

            /// Name for labels of metrics.
            pub const fn name(&self) -> &'static str {
                match self {
                    $($reason => $name),+
                }
            }
        }
    };
}

names! {
    Self::QuicCostsLess(_) => Quic, "quic_costs_less";
    Self::QuicWorks => Quic, "quic_works";
    Self::CompatLoss { .. } => Quic, "compat_loss";
    Self::QuicCostsMore(_) => Tcp, "quic_costs_more";
    Self::HandshakeFailed => Tcp, "handshake_failed";
    Self::UdpBlackHole => Tcp, "udp_black_hole";
    Self::ProbeTimeouts { .. } => Tcp, "probe_timeouts";
    Self::NotUsed { .. } => Tcp, "not_used";
    Self::CompatPackets { .. } => Tcp, "compat_packets";
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QuicCostsLess(comparison) => write!(f, "QUIC costs less: {comparison}"),
            Self::QuicCostsMore(comparison) => write!(f, "QUIC costs more: {comparison}"),
            Self::QuicWorks => f.write_str("QUIC works again"),
            Self::HandshakeFailed => f.write_str("a QUIC handshake failed"),
            Self::UdpBlackHole => f.write_str("UDP packets no longer arrive"),
            Self::ProbeTimeouts { count, tcp_answered } => {
                let ago = tcp_answered.as_secs_f64();
                write!(f, "{count} probe timeouts of QUIC without an answer, TCP answered {ago:.1} s ago")
            }
            Self::NotUsed { unused, packets } => {
                let seconds = unused.as_secs();
                write!(f, "QUIC is advertised but was not used for {seconds} s, TCP sent {packets} packets")
            }
            Self::CompatLoss { total_retrans, snd_ssthresh, max_ssthresh } => write!(
                f,
                "autoquic rule: {total_retrans} retransmissions, ssthresh {snd_ssthresh} of {max_ssthresh}"
            ),
            Self::CompatPackets { sent, largest_received } => write!(
                f,
                "autoquic rule: {sent} packets sent, packet number {largest_received} received, 60 or less between"
            ),
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tcp, quic, path, measured_by, lasted } = self;
        let seconds = lasted.as_secs_f64();
        write!(f, "QUIC {quic}, TCP {tcp} for {seconds:.0} s; {path} by {measured_by}")
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, from, to, reason, .. } = self;
        write!(f, "{key}: {from} to {to}: {reason}")
    }
}
