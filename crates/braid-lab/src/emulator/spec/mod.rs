//! The language of links: `delay=50ms loss=1% ; t=60s loss=none`.

pub(crate) mod error;
mod key;
mod link;
mod path;
pub(crate) mod probability;
pub(crate) mod quantity;
mod timeline;

pub use error::LinkError;
pub use link::LinkSpec;
pub use path::PathSpec;
pub use probability::Probability;
pub use timeline::{Change, Timeline};
