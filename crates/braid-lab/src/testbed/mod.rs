//! Testbed of an experiment: network namespaces for its programs, and the links between them. The kernel removes them
//! with the process that created them.
//!
//! [`enter`] moves the calling program into namespaces of its own, so that it cannot reach the machine's network and
//! leaves nothing behind. [`Topology`] creates a [`Namespace`] for each end and the links; a [`Program`] runs in one
//! namespace. All waits are for descriptors; nothing polls.

mod device;
mod entry;
mod error;
mod namespace;
mod output;
mod plan;
mod program;
mod sys;
mod tool;
mod topology;
mod watch;

pub use entry::{Entry, enter, privileges};
pub use error::TestbedError;
pub use namespace::Namespace;
pub use output::{End, Line, Stream, Termination};
pub use plan::{LinkPlan, PacketRule, WireChoice};
pub use program::{Launch, Program, own_command};
pub use tool::RuleCounters;
pub use topology::{LinkEnd, Topology};
