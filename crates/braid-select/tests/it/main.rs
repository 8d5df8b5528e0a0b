//! Tests of the selector on virtual time: properties, the grid against a simulated network, and published tables.

mod client;
mod grid;
mod network;
mod published;
mod rules;
mod sender;
