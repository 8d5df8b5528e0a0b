//! Loads against a broker in this process, on virtual time.

mod bulk;
mod pairs;
mod rig;
mod urgent;
