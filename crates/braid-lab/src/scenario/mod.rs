//! Scenarios: experiments described in TOML. Ends, links, programs, variants, metrics and bounds.

mod check;
mod field;
mod source;
mod value;

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::report::{self, Bound, Published, Reference, SeriesKind};
use braid_emulator::LinkSpec;

pub(crate) use field::Placeholders;
pub use field::{Ready, Rule, Span};
pub use source::{Builtin, ScenarioError, builtin};
pub use value::{Field, Flow, LinkField, ProgramField, Value, Way, Window};

/// Scenario, as its TOML file describes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Name for `lab run`.
    pub name: String,
    /// One line for lists.
    pub title: String,
    /// Question and method, a few sentences.
    pub about: String,
    /// Duration of the workload of one run.
    pub duration: Span,
    /// Duration with `--quick`.
    pub quick: Span,
    /// Whether the workload is a number of things to do instead of a time: it is over when the leading program ends,
    /// and the duration is its limit.
    #[serde(default)]
    pub counted: bool,
    /// Time between SIGINT and SIGKILL for programs.
    #[serde(default = "Span::five_seconds")]
    pub grace: Span,
    /// Seeds; one run each.
    #[serde(default = "one_seed")]
    pub seeds: Vec<u64>,
    /// Seeds with `--quick`; if absent, the first of `seeds`.
    #[serde(default)]
    pub quick_seeds: Vec<u64>,
    /// Runs per seed.
    #[serde(default = "once")]
    pub repetitions: u64,
    /// Names of the hosts.
    pub ends: Vec<String>,
    /// Links between the ends.
    #[serde(rename = "link")]
    pub links: Vec<Link>,
    /// Networks to compare on: parameters of the links.
    #[serde(rename = "profile")]
    pub profiles: Vec<Profile>,
    /// Files that programs read, by name; placeholders as in [`Program::run`].
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// Programs, in the order of starting.
    #[serde(rename = "program")]
    pub programs: Vec<Program>,
    /// Variants to compare.
    #[serde(rename = "variant")]
    pub variants: Vec<Variant>,
    /// Metrics of each run.
    #[serde(rename = "metric")]
    pub metrics: Vec<Metric>,
    /// Windows of the workload's time.
    #[serde(default, rename = "window")]
    pub windows: Vec<Window>,
    /// Latency distributions.
    #[serde(default, rename = "curve")]
    pub curves: Vec<Curve>,
    /// Time series.
    #[serde(default, rename = "series")]
    pub series: Vec<SeriesOf>,
    /// Published figures, by profile, variant and metric.
    #[serde(default)]
    pub published: Published,
    /// Reference figures beside those measured.
    #[serde(default, rename = "reference")]
    pub references: Vec<Reference>,
    /// Bounds of both forms.
    #[serde(default, rename = "bound")]
    pub bounds: Vec<Bound>,
    /// Additional bounds of the long form.
    #[serde(default, rename = "long_bound")]
    pub long_bounds: Vec<Bound>,
}

/// Link between two ends; plain unless a profile shapes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Name in profiles and reports.
    pub name: String,
    /// Left and right end; `up` is from left to right.
    pub between: [String; 2],
    /// Congestion control of TCP connections over it whose programs choose none, by its name in the kernel; absent: the
    /// kernel's default.
    #[serde(default)]
    pub tcp: Option<String>,
}

/// Network to compare on.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Name in options and files.
    pub name: String,
    /// Title for readers.
    pub title: String,
    /// Parameters of emulated links, by name, as link strings.
    #[serde(default)]
    pub links: BTreeMap<String, LinkSpec>,
    /// Rules of the kernel's packet filter at the right end of links.
    #[serde(default)]
    pub rules: BTreeMap<String, Rule>,
    /// Values of placeholders; those of a variant take precedence.
    #[serde(default)]
    pub set: BTreeMap<String, String>,
    /// Omitted with `--quick`.
    #[serde(default)]
    pub long_only: bool,
    /// Omitted unless named: a control of the laboratory itself.
    #[serde(default)]
    pub control: bool,
    /// Leaves the offloads of every device enabled, so that every run is refused. Links must be plain then.
    #[serde(default)]
    pub offloads: bool,
}

/// Program at an end.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Name in values, files and options.
    pub name: String,
    /// End at which it runs.
    pub at: String,
    /// Command line in shell syntax; a first word `braidmq` is this program. Placeholders: `{END}` (address of that
    /// end), `{dir}` (working directory, that of the run), `{json}` (file for the program's summary), `{gate_log}`
    /// (file for its gate log), `{duration}` and `{seconds}` (of the workload), `{seed}`, and the keys of `set`.
    pub run: String,
    /// Condition for starting the next program: `line:TEXT` (printed) or `port:N` (accepts TCP connections). Absent:
    /// none.
    #[serde(default)]
    pub ready: Option<Ready>,
    /// Whether the run is over when this program exits.
    #[serde(default)]
    pub leads: bool,
    /// Exit codes that do not refuse the run. `braidmq bench` exits with 7 when every connection was lost.
    #[serde(default = "success")]
    pub may_end: Vec<i32>,
    /// Variants in which it runs; empty: all.
    #[serde(default)]
    pub only: Vec<String>,
}

/// Variant to compare.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// Name in options and files.
    pub name: String,
    /// Title for readers.
    pub title: String,
    /// Profiles on which it runs; empty: all.
    #[serde(default)]
    pub profiles: Vec<String>,
    /// Omitted with `--quick`.
    #[serde(default)]
    pub long_only: bool,
    /// Programs that must be installed; otherwise it is left out.
    #[serde(default)]
    pub needs: Vec<String>,
    /// Values of its placeholders.
    #[serde(default)]
    pub set: BTreeMap<String, String>,
}

/// Number of a run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metric {
    /// Key in the report.
    pub name: String,
    /// Title of its column; without one it has no column.
    #[serde(default)]
    pub title: Option<String>,
    /// Unit for readers.
    #[serde(default)]
    pub unit: String,
    /// Digits after the point.
    #[serde(default)]
    pub digits: u8,
    /// Source.
    pub value: Value,
    /// Divisor. For a latency quantile: the number of messages, including those that never arrived.
    #[serde(default)]
    pub per: Option<Value>,
    /// Factor.
    #[serde(default = "unchanged")]
    pub times: f64,
}

/// Latency distribution.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Curve {
    /// Name in the report.
    pub name: String,
    /// `PROGRAM:TOPIC`.
    pub of: Flow,
    /// Number of messages that were due.
    #[serde(default)]
    pub per: Option<Value>,
}

/// Time series.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeriesOf {
    /// Chart in which it is drawn.
    pub kind: SeriesKind,
    /// Name in the report.
    pub name: String,
    /// `PROGRAM:TOPIC` for messages per second, `PROGRAM:stream:N` for bytes.
    pub of: Flow,
}

fn one_seed() -> Vec<u64> {
    vec![1]
}

fn success() -> Vec<i32> {
    vec![0]
}

fn once() -> u64 {
    1
}

fn unchanged() -> f64 {
    1.0
}

impl Metric {
    /// Column in tables; `None` without a title.
    #[must_use]
    pub fn column(&self) -> Option<report::Column> {
        Some(report::Column {
            metric: self.name.clone(),
            title: self.title.clone()?,
            unit: self.unit.clone(),
            digits: self.digits,
        })
    }

    /// Whether the metric is a latency, which has no value where the messages in question never arrived.
    pub(crate) fn is_latency(&self) -> bool {
        let is_quantile = self.value.quantile().is_some();
        self.times > 0.0 && self.value.is_latency() && (self.per.is_none() || is_quantile)
    }
}

impl Scenario {
    /// Parses and checks a scenario. `file` is its name in errors. `like = "NAME"` inherits all other keys from a
    /// built-in scenario.
    ///
    /// # Errors
    /// Invalid TOML, an unknown or missing key, or names that do not exist; with file and line.
    pub fn parse(file: &str, text: &str) -> Result<Self, ScenarioError> {
        let scenario = source::parse(file, text)?;
        scenario.check().map_err(|problem| ScenarioError::of_name(file, text, &problem))?;
        Ok(scenario)
    }

    /// Checks the names; the error names the first problem.
    pub(crate) fn check(&self) -> Result<(), String> {
        check::check(self)
    }

    /// Values of metrics and curves, with what they are divided by.
    pub(crate) fn values(&self) -> impl Iterator<Item = &Value> {
        let of_metrics = self.metrics.iter().flat_map(|metric| [Some(&metric.value), metric.per.as_ref()]);
        let of_curves = self.curves.iter().map(|curve| curve.per.as_ref());
        of_metrics.chain(of_curves).flatten()
    }

    /// Whether an end knows the address of another: its own, and those of the other ends of its links.
    pub(crate) fn meet(&self, one: &str, other: &str) -> bool {
        let are_there = |name: &str| self.links.iter().any(|link| link.between.iter().any(|end| end == name));
        let joins = |link: &Link| {
            link.between.iter().any(|end| end == one) && link.between.iter().any(|end| end == other)
        };
        if one == other { are_there(one) } else { self.links.iter().any(joins) }
    }
}

impl Program {
    /// Whether it runs in a variant.
    #[must_use]
    pub fn runs_in(&self, variant: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == variant)
    }
}

impl Variant {
    /// Entry in reports.
    pub(crate) fn described(&self) -> report::Variant {
        report::Variant { name: self.name.clone(), title: self.title.clone() }
    }
}

impl Profile {
    /// Entry in reports.
    pub(crate) fn described(&self) -> report::Profile {
        let shapes = self.links.iter().map(|(link, shape)| (link, shape.to_string()));
        let rules = self.rules.iter().map(|(link, rule)| (link, rule.to_string()));
        let mut links: BTreeMap<String, String> = BTreeMap::new();
        for (link, text) in shapes.chain(rules).filter(|(_, text)| !text.is_empty()) {
            links.entry(link.clone()).and_modify(|all| *all = format!("{all}, {text}")).or_insert(text);
        }
        report::Profile { name: self.name.clone(), title: self.title.clone(), links }
    }
}
