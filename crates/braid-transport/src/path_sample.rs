//! Measurements of the path of a link.

use crate::http::{PathStats, TcpMetrics};

/// Measurements of a path.
#[derive(Clone, Copy, Debug)]
pub enum PathSample {
    /// Of TCP, with or without TLS: those of the kernel.
    Tcp(TcpMetrics),
    /// Of QUIC: those of the library.
    Quic(PathStats),
}
