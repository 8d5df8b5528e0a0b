//! Output of a run: lines or a live view, a table at its end, JSON, and metrics for Prometheus.

mod columns;
mod json;
mod live;
mod metrics;
mod screen;
mod table;
mod view;

pub(super) use json::JsonFile;
pub(super) use live::Live;
pub(super) use metrics::Metrics;
pub(super) use screen::Screen;
pub(super) use table::table;
