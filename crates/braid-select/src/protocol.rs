//! Protocols, and ways of deciding between them.

use std::fmt;

/// Transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP, with or without TLS.
    Tcp,
    /// QUIC.
    Quic,
}

impl Protocol {
    /// The other protocol.
    pub const fn other(self) -> Self {
        match self {
            Self::Tcp => Self::Quic,
            Self::Quic => Self::Tcp,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Quic => "QUIC",
        })
    }
}

/// Way of deciding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// By the cost model.
    #[default]
    Auto,
    /// QUIC for all.
    Always,
    /// TCP for all.
    Never,
    /// By the rule of nginx' autoquic module, for comparison: one retransmission upgrades, and few packets after 30 s
    /// downgrade. No hysteresis, no back-off.
    AutoquicCompat,
}

impl fmt::Display for Mode {
    /// Writes the name of the mode in configurations.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
            Self::AutoquicCompat => "autoquic-compat",
        })
    }
}
