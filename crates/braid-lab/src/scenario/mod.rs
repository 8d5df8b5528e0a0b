//! Experiments as data: who is joined by which links, what runs there, what is measured and what must hold.

mod builtin;
mod check;
mod error;
mod like;
mod ready;
mod rule;
mod span;
mod template;
mod value;
mod window;

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::emulator::LinkSpec;
use crate::report::{self, Bound, Published, Reference, SeriesKind};

pub use builtin::{Builtin, builtin};
pub use error::ScenarioError;
pub use ready::Ready;
pub use rule::Rule;
pub use span::Span;
pub(crate) use template::Placeholders;
pub use value::{Field, Flow, LinkField, ProgramField, Value};
pub use window::Window;

/// One scenario, as its TOML file says it. `NAME` below is a scenario's own word for something.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What `lab run` calls it.
    pub name: String,
    /// One line for lists.
    pub title: String,
    /// The question and the method, a few sentences.
    pub about: String,
    /// How long the workload of one run lasts.
    pub duration: Span,
    /// The same with `--quick`.
    pub quick: Span,
    /// Programs that stand by themselves get this long for their last words.
    #[serde(default = "Span::five_seconds")]
    pub grace: Span,
    /// One run per seed.
    #[serde(default = "one_seed")]
    pub seeds: Vec<u64>,
    /// Seeds with `--quick`; the first one if this is absent.
    #[serde(default)]
    pub quick_seeds: Vec<u64>,
    /// Runs per seed.
    #[serde(default = "once")]
    pub repetitions: u64,
    /// The hosts, by name.
    pub ends: Vec<String>,
    /// What joins them.
    #[serde(rename = "link")]
    pub links: Vec<Link>,
    /// The networks to compare on: the shapes of the links.
    #[serde(rename = "profile")]
    pub profiles: Vec<Profile>,
    /// Files that programs read, by name; placeholders as in [`Program::run`].
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// What runs, in the order of starting.
    #[serde(rename = "program")]
    pub programs: Vec<Program>,
    /// What is compared.
    #[serde(rename = "variant")]
    pub variants: Vec<Variant>,
    /// What is measured.
    #[serde(rename = "metric")]
    pub metrics: Vec<Metric>,
    /// Parts of the workload's time that are measured by themselves.
    #[serde(default, rename = "window")]
    pub windows: Vec<Window>,
    /// Curves of latencies.
    #[serde(default, rename = "curve")]
    pub curves: Vec<Curve>,
    /// Lines over time.
    #[serde(default, rename = "series")]
    pub series: Vec<SeriesOf>,
    /// What others published: by profile, variant and metric.
    #[serde(default)]
    pub published: Published,
    /// Figures to stand beside those measured.
    #[serde(default, rename = "reference")]
    pub references: Vec<Reference>,
    /// What must hold.
    #[serde(default, rename = "bound")]
    pub bounds: Vec<Bound>,
    /// What must hold in the long form besides.
    #[serde(default, rename = "long_bound")]
    pub long_bounds: Vec<Bound>,
}

/// Two ends that are joined. A link that no profile shapes is a plain one.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Its name in profiles and reports.
    pub name: String,
    /// Left and right end: `up` is from left to right.
    pub between: [String; 2],
}

/// A network to compare on.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// What readers see.
    pub title: String,
    /// The shape of each emulated link, by the link's name, as a link string.
    #[serde(default)]
    pub links: BTreeMap<String, LinkSpec>,
    /// Real rules of the kernel's packet filter at the right end of links.
    #[serde(default)]
    pub rules: BTreeMap<String, Rule>,
    /// What placeholders stand for on it; a variant's come before.
    #[serde(default)]
    pub set: BTreeMap<String, String>,
    /// Left out with `--quick`.
    #[serde(default)]
    pub long_only: bool,
    /// Left out unless it is named: what it shows is how the laboratory works, not how programs do.
    #[serde(default)]
    pub control: bool,
    /// Leaves the offloads of every device on, for which the laboratory refuses each run. No link has a shape then.
    #[serde(default)]
    pub offloads: bool,
}

/// A program at an end.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Its name in values, files and options.
    pub name: String,
    /// The end that it runs at.
    pub at: String,
    /// The command line, as a shell would split it. A first word `braidmq` is this program. Placeholders: `{END}` is
    /// that end's address, `{dir}` the run's directory, in which it works, `{json}` where the program writes what it measured,
    /// `{gate_log}` where it writes what its gates know,
    /// `{duration}` and `{seconds}` how long the workload lasts, `{seed}`, and the variant's `{NAME}` of its `set`.
    pub run: String,
    /// When the next program may start: `line:TEXT` (it has printed that), `port:N` (it accepts TCP connections
    /// there). Absent: at once.
    #[serde(default)]
    pub ready: Option<Ready>,
    /// The run is over when this program ends by itself.
    #[serde(default)]
    pub leads: bool,
    /// Exit codes with which it may end by itself; any other refuses the run. `braidmq bench` says 7 when every
    /// connection was lost.
    #[serde(default = "success")]
    pub may_end: Vec<i32>,
    /// Only in these variants; empty: in all.
    #[serde(default)]
    pub only: Vec<String>,
}

/// What is compared.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// Its name.
    pub name: String,
    /// What readers see.
    pub title: String,
    /// Only on these profiles; empty: on all.
    #[serde(default)]
    pub profiles: Vec<String>,
    /// Left out with `--quick`.
    #[serde(default)]
    pub long_only: bool,
    /// What its placeholders stand for.
    #[serde(default)]
    pub set: BTreeMap<String, String>,
}

/// One number of a run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metric {
    /// Its key in the report.
    pub name: String,
    /// The head of its column; without one it has no column.
    #[serde(default)]
    pub title: Option<String>,
    /// Its unit, for readers.
    #[serde(default)]
    pub unit: String,
    /// Digits after the point.
    #[serde(default)]
    pub digits: u8,
    /// Where it comes from.
    pub value: Value,
    /// What it is divided by. For a quantile of latencies: of how many messages, those that never came included.
    #[serde(default)]
    pub per: Option<Value>,
    /// What it is multiplied by.
    #[serde(default = "unchanged")]
    pub times: f64,
}

/// A distribution of latencies.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Curve {
    /// Its name in the report.
    pub name: String,
    /// `PROGRAM:TOPIC`.
    pub of: Flow,
    /// How many messages there should have been.
    #[serde(default)]
    pub per: Option<Value>,
}

/// Something over time.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeriesOf {
    /// In which plot.
    pub kind: SeriesKind,
    /// Its name in the report.
    pub name: String,
    /// `PROGRAM:TOPIC` for messages a second, `PROGRAM:stream:N` for bytes.
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
    /// Its column in tables, if it has one.
    #[must_use]
    pub fn column(&self) -> Option<report::Column> {
        Some(report::Column {
            metric: self.name.clone(),
            title: self.title.clone()?,
            unit: self.unit.clone(),
            digits: self.digits,
        })
    }
}

impl Scenario {
    /// Reads a scenario. `file` is what errors call it.
    ///
    /// A scenario that says `like = "NAME"` has everything of that one (which comes with the program) but for the keys
    /// that it gives itself.
    ///
    /// # Errors
    /// Not TOML, a key that is unknown or missing, or names that do not fit together; with file and line.
    pub fn parse(file: &str, text: &str) -> Result<Self, ScenarioError> {
        let scenario = like::parse(file, text)?;
        scenario.check().map_err(|problem| ScenarioError::new(file, None, problem))?;
        Ok(scenario)
    }

    /// Whether its names fit together; if not, what does not.
    pub(crate) fn check(&self) -> Result<(), String> {
        check::check(self)
    }
}

impl Scenario {
    /// Whether an end knows another one's address: itself, and those at the other end of a link.
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
    /// As reports have it.
    pub(crate) fn described(&self) -> report::Variant {
        report::Variant { name: self.name.clone(), title: self.title.clone() }
    }
}

impl Profile {
    /// As reports have it.
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
