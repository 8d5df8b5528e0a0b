//! Grammar of links: `delay=50ms loss=1% ; t=60s loss=none`.

mod link;
mod path;
pub(crate) mod quantity;

pub use link::{Change, LinkSpec, Timeline};
pub use path::PathSpec;
pub use quantity::{LinkError, Probability};
