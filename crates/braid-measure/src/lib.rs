//! Measuring: readings of processes and of the machine, latency histograms, spreads over rounds, text tables and SVG
//! charts.
//!
//! A leaf: this crate never speaks MQTT, opens no sockets and reads no arguments.

mod chart;
mod latency;
pub mod machine;
pub mod network;
pub mod number;
mod priority;
pub mod process;
mod spread;
mod svg;
mod table;
pub mod text;

pub use chart::{Axis, Band, Chart, Event, Format, LegendEntry, Line, Panel, Swatch};
pub use latency::{Latencies, Percentiles, Quantiles};
pub use machine::Machine;
pub use priority::RaisedPriority;
pub use spread::{Spread, quantile, quantile_of_all};
pub use table::{Alignment, Table};
