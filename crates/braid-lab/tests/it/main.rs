//! The laboratory: its emulator on virtual time, wires and namespaces on this machine's kernel, scenarios and reports.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod delay;
mod determinism;
mod drive;
mod grammar;
mod loss;
mod nat;
mod netem;
mod packets;
mod policer;
mod queue;
mod report_bound;
mod report_compare;
mod report_files;
mod report_fixture;
mod report_html;
mod report_plot;
mod report_table;
mod round_trip;
mod scenario;
mod scenario_bounds;
mod selftest;
mod statistics;
mod testbed_entry;
mod testbed_program;
mod testbed_ready;
mod testbed_rig;
mod testbed_topology;
mod timeline;
mod wire_kernel;
mod wire_log;
mod wire_loop;
mod wire_memory;
mod wire_room;
