//! Reports of experiments: data model, bounds, comparison, and their files, page, table and charts.

mod bound;
mod compare;
mod file;
mod model;
mod page;
mod plot;
mod spread;
mod table;

pub use bound::{Bound, check};
pub use compare::{ComparedMetric, Comparison, Side, compare};
pub use file::{ReportError, Written, load, write};
pub use model::{
    Cdf, Check, Column, Event, GateRun, LinkRun, Machine, PathClass, PathRun, Profile, ProgramRun, Published,
    Reference, Report, Run, SCHEMA, SelftestResult, Series, SeriesKind, Variant,
};
pub use page::html;
pub use plot::{Plot, overview, plots};
pub use spread::Spread;
pub use table::table;
