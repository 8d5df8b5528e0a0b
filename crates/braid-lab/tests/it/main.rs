//! The laboratory: wires and namespaces on this machine's kernel, scenarios and reports.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod link;
#[path = "../../../braid-emulator/tests/it/packets.rs"]
#[allow(dead_code, reason = "tests of the emulator use the rest")]
mod packets;
mod report_bound;
mod report_compare;
mod report_files;
mod report_fixture;
mod report_html;
mod report_plot;
mod report_table;
mod scenario;
mod scenario_bounds;
mod selftest;
mod testbed_entry;
mod testbed_program;
mod testbed_ready;
mod testbed_rig;
mod testbed_topology;
mod wire_kernel;
mod wire_log;
mod wire_loop;
mod wire_memory;
mod wire_room;
