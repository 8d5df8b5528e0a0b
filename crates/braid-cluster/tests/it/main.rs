//! Tests against servers of NATS, which `make tools` installs.

mod join;
mod log;
mod servers;
