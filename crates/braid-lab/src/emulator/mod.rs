//! The link emulator: a pure pipeline per direction.
//!
//! Time is a [`std::time::Duration`] since the start of the link and never goes back; a packet is the bytes of an IP
//! packet. The same code runs on virtual time in tests and on the clock between namespaces.

mod direction;
mod nat;
mod packet;
mod pipeline;
mod prf;
mod queue;
mod spec;
mod stage;
mod stages;
mod verdict;

pub use direction::Direction;
pub use nat::{Nat, NatKind, NatTimes};
pub use packet::PacketView;
pub use pipeline::{Departure, Pipeline};
pub use prf::{CounterPrf, Stage};
pub(crate) use spec::quantity::{duration_text, parse_duration};
pub use spec::{Change, LinkError, LinkSpec, PathSpec, Probability, Timeline};
pub use stage::{Delay, Distribution, Limit, Loss, LossModel, Order, Policer, Rate, Rule, Selector};
pub use verdict::{Fate, PacketCount, PathCounters, Verdict};
