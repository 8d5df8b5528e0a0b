//! Whole runs against a broker in this process, on virtual time.

mod accounts;
mod allocator;
mod broker;
mod dialing;
mod ends;
mod lives;
mod looking;
mod memory;
mod publishing;
mod self_measure;
mod steps;
mod streams;
mod subscribing;
mod timestamps;
mod traces;
