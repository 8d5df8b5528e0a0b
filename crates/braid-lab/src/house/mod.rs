//! The house of an experiment: namespaces for its programs and the links between them, gone with the process that made
//! them.
//!
//! [`enter`] moves the program into namespaces of its own, so that nothing it does reaches the machine's network and
//! nothing outlives it. [`Topology`] makes a [`Namespace`] for each end and the links between them; [`Program`] runs in
//! one of those. Nothing here polls: every wait is for a descriptor.

mod cable;
mod device;
mod end;
mod entry;
mod error;
mod lines;
mod memory;
mod namespace;
mod offload;
mod plan;
mod program;
mod ready;
mod refusal;
mod rule;
mod sys;
mod tool;
mod topology;
mod watch;

pub use end::{End, How};
pub use entry::{Entry, enter, privileges};
pub use error::HouseError;
pub use lines::{Line, Stream};
pub use namespace::Namespace;
pub use plan::{LinkPlan, PacketRule, WireChoice};
pub use program::{Launch, Program, own_command};
pub use rule::RuleCounters;
pub use topology::{LinkEnd, Topology};
