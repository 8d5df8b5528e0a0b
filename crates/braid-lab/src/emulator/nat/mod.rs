//! A NAT that forgets: after a rebind, flows come from other ports, and what is sent to the old ones is lost.

mod bindings;
mod spec;

pub(crate) use bindings::{Bindings, Crossing, Inside};
pub use spec::{Nat, NatKind, NatTimes};
