//! What an experiment found, for people and for machines.

mod bound;
mod compare;
mod grid;
mod html;
mod load;
mod model;
mod number;
mod plot;
mod spread;
mod table;
mod text;
mod write;

pub use bound::{Bound, check};
pub use compare::{CompareError, ComparedMetric, Comparison, Side, compare};
pub use html::html;
pub use load::{LoadError, load};
pub use model::{
    Cdf, Check, Column, Event, GateRun, LinkRun, Machine, PathClass, PathRun, Profile, ProgramRun, Published,
    Reference, Report, Run, SCHEMA, SelftestResult, Series, SeriesKind, Variant,
};
pub use plot::{Plot, overview, plots};
pub use spread::Spread;
pub use table::table;
pub use write::{WriteError, Written, write};
