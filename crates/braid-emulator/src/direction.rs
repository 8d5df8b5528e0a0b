//! The two directions of a link.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Which way a packet goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the left end, where clients are, to the right end.
    Up,
    /// From the right end, where the server is, to the left end.
    Down,
}

impl Direction {
    /// Both, up first.
    pub const BOTH: [Self; 2] = [Self::Up, Self::Down];
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Up => "up",
            Self::Down => "down",
        })
    }
}
