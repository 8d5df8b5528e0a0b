//! Bounds: limits that a scenario sets to its medians.

use braid_measure::number::short;
use serde::{Deserialize, Serialize};

use super::{Check, Report, Spread};

/// `[[bound]]` of a scenario, for the median of a metric over the usable runs of each named variant on each named
/// profile. Requires `at_least`, `at_most` or both, or `absent`. A limit fails if a usable run lacks the metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Fields")]
pub struct Bound {
    /// Key in [`super::Run::metrics`].
    pub metric: String,
    /// Variant; absent: every variant that ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// Profile; absent: every profile on which the variant ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Lower limit of the median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    /// Upper limit of the median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
    /// Requires usable runs, none of which has the metric.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub absent: bool,
    /// Base of which `at_least` and `at_most` are multiples: the median of the metric elsewhere. A lower limit with a
    /// base of 0 does not hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    times: Option<Base>,
    /// Profiles over whose ratios to the base the mean is taken, in place of one profile.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mean_of: Vec<String>,
}

/// Serialized [`Bound`], before validation.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    metric: String,
    variant: Option<String>,
    profile: Option<String>,
    at_least: Option<f64>,
    at_most: Option<f64>,
    #[serde(default)]
    absent: bool,
    times: Option<Base>,
    #[serde(default)]
    mean_of: Vec<String>,
}

/// Base of the limits of a bound.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "times is the name of a variant, or { variant = \"NAME\", profile = \"NAME\" } or one of these two, or \
                 { best_of = [\"NAME\", \"NAME\"] }"
)]
enum Base {
    Variant(String),
    Best(BestOf),
    Pair(Pair),
}

/// Variants whose better median on the same profile is the base: the smallest for an upper limit, the largest for a
/// lower one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BestOf {
    best_of: Vec<String>,
}

/// Variant and profile of a base; omitted ones are those of the bound.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pair {
    #[serde(skip_serializing_if = "Option::is_none")]
    variant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<String>,
}

impl TryFrom<Fields> for Bound {
    type Error = String;

    fn try_from(fields: Fields) -> Result<Self, String> {
        let Fields { metric, variant, profile, at_least, at_most, absent, times, mean_of } = fields;
        let bound = Self { metric, variant, profile, at_least, at_most, absent, times, mean_of };
        match bound.problem() {
            Some(problem) => Err(format!("the bound of {:?} {problem}", bound.metric)),
            None => Ok(bound),
        }
    }
}

/// Checks each bound for each of its variants and profiles. A bound without usable runs does not hold.
pub fn check(bounds: &[Bound], report: &Report) -> Vec<Check> {
    bounds.iter().flat_map(|bound| bound.check(report)).collect()
}

impl Bound {
    /// Variants and profiles of `times`; `None` in place of one means that of the bound.
    pub fn bases(&self) -> Vec<(Option<&str>, Option<&str>)> {
        match &self.times {
            None => Vec::new(),
            Some(Base::Variant(variant)) => vec![(Some(variant.as_str()), None)],
            Some(Base::Pair(Pair { variant, profile })) => vec![(variant.as_deref(), profile.as_deref())],
            Some(Base::Best(BestOf { best_of })) => {
                best_of.iter().map(|variant| (Some(variant.as_str()), None)).collect()
            }
        }
    }

    /// Profiles of the bound itself; none: every profile.
    pub fn profiles(&self) -> impl Iterator<Item = &str> {
        self.profile.as_deref().into_iter().chain(self.mean_of.iter().map(String::as_str))
    }

    /// Problem that makes the bound meaningless.
    fn problem(&self) -> Option<&'static str> {
        let limits = [self.at_least, self.at_most];
        let is_limited = limits.iter().any(Option::is_some);
        let own = (self.variant.as_deref(), self.profile.as_deref());
        let is_itself = |(variant, profile): (Option<&str>, Option<&str>)| {
            (variant.is_none() || variant == own.0) && (profile.is_none() || profile == own.1)
        };
        if self.absent && (is_limited || self.times.is_some()) {
            Some("has a limit beside absent: leave out at_least, at_most and times, or absent")
        } else if !self.absent && !is_limited {
            Some("says neither at_least nor at_most nor absent: give it one of them")
        } else if limits.iter().flatten().any(|limit| !limit.is_finite()) {
            Some("is no finite number: write one")
        } else if self.at_least.zip(self.at_most).is_some_and(|(low, high)| low > high) {
            Some("has at_least above at_most: no number can hold it")
        } else if self.bases().into_iter().any(is_itself) {
            Some("compares with itself: name another variant or profile in times")
        } else if matches!(&self.times, Some(Base::Best(BestOf { best_of })) if best_of.is_empty()) {
            Some("compares with the best of no variant: name some in best_of")
        } else if self.at_least.is_some() && self.at_most.is_some() && self.bases().len() > 1 {
            Some("has two limits and best_of, whose base is that of one: leave one limit out")
        } else if !self.mean_of.is_empty()
            && (self.times.is_none() || self.variant.is_none() || self.profile.is_some())
        {
            Some("has mean_of: give it a variant and times, and leave out profile")
        } else {
            None
        }
    }

    fn check(&self, report: &Report) -> Vec<Check> {
        if !self.mean_of.is_empty() {
            return vec![self.check_mean(report)];
        }
        let pairs = self.pairs(report);
        if pairs.is_empty() {
            let variant = self.variant.as_deref().unwrap_or("every variant");
            let profile = self.profile.as_deref().unwrap_or("every profile");
            return vec![self.check_pair(report, variant, profile)];
        }
        pairs.into_iter().map(|(variant, profile)| self.check_pair(report, variant, profile)).collect()
    }

    /// Variants and profiles of the bound, in the order of the table, without its base.
    fn pairs<'a>(&self, report: &'a Report) -> Vec<(&'a str, &'a str)> {
        let is = |wanted: &Option<String>, name: &str| wanted.as_deref().is_none_or(|wanted| wanted == name);
        let mut pairs = Vec::new();
        for profile in report.profiles.iter().filter(|profile| is(&self.profile, &profile.name)) {
            for variant in report.variants.iter().filter(|variant| is(&self.variant, &variant.name)) {
                let pair = (variant.name.as_str(), profile.name.as_str());
                let ran = report.runs_of(pair.0, pair.1).next().is_some();
                if ran && !self.compared_with(pair).contains(&pair) {
                    pairs.push(pair);
                }
            }
        }
        pairs
    }

    /// Bases of a pair of variant and profile.
    fn compared_with<'a>(&'a self, (variant, profile): (&'a str, &'a str)) -> Vec<(&'a str, &'a str)> {
        self.bases().into_iter().map(|(of, on)| (of.unwrap_or(variant), on.unwrap_or(profile))).collect()
    }

    /// The base with the best median, and that median; the first one without a median, if there is any.
    fn best_base<'a>(
        &self,
        report: &Report,
        bases: &[(&'a str, &'a str)],
    ) -> Option<((&'a str, &'a str), Option<f64>)> {
        let median = |(variant, profile): (&str, &str)| report.median(variant, profile, &self.metric);
        let known = bases.iter().map(|base| (*base, median(*base)));
        known.reduce(|best, next| match (best.1, next.1) {
            (None, _) => best,
            (_, None) => next,
            (Some(one), Some(other)) => {
                let is_better = if self.at_most.is_some() { other < one } else { other > one };
                if is_better { next } else { best }
            }
        })
    }

    /// Checks the mean of the ratios to the base over the profiles.
    fn check_mean(&self, report: &Report) -> Check {
        let variant = self.variant.as_deref().unwrap_or_default();
        let ratio = |profile: &String| {
            let bases = self.compared_with((variant, profile));
            let (_, unit) = self.best_base(report, &bases)?;
            let spread = report.spread(variant, profile, &self.metric)?;
            let measured = Some(spread.median).filter(|_| spread.part().is_none())?;
            unit.filter(|unit| *unit > 0.0).map(|unit| measured / unit)
        };
        let ratios: Option<Vec<f64>> = self.mean_of.iter().map(ratio).collect();
        let mean = ratios.map(|ratios| ratios.iter().sum::<f64>() / ratios.len() as f64);
        let holds = mean.is_some_and(|mean| {
            self.at_least.is_none_or(|least| mean >= least) && self.at_most.is_none_or(|most| mean <= most)
        });
        let limit = |words: &str, limit: Option<f64>| limit.map(|limit| format!("{words} {}", short(limit)));
        let limits = [limit("at least", self.at_least), limit("at most", self.at_most)];
        let bound = format!(
            "{variant}, mean of {} over {}: {} times {} (bound: {})",
            self.metric,
            self.mean_of.join(", "),
            mean.map_or_else(|| "unknown".to_owned(), short),
            self.base_words(),
            limits.into_iter().flatten().collect::<Vec<_>>().join(" and ")
        );
        Check { bound, measured: mean, holds }
    }

    /// Name of the base in a mean.
    fn base_words(&self) -> String {
        let names: Vec<&str> = self.bases().into_iter().filter_map(|(variant, _)| variant).collect();
        if names.len() > 1 { format!("the better of {}", names.join(" and ")) } else { names.join("") }
    }

    fn check_pair(&self, report: &Report, variant: &str, profile: &str) -> Check {
        let spread = report.spread(variant, profile, &self.metric);
        let measured = spread.map(|spread| spread.median).filter(|median| median.is_finite());
        let usable = report.usable(variant, profile).count();
        let (holds, limits) = match self.absent {
            true => (usable > 0 && spread.is_none(), "absent".to_owned()),
            false => {
                let of_all = measured.filter(|_| spread.is_some_and(|spread| spread.part().is_none()));
                self.check_limits(report, (variant, profile), of_all)
            }
        };
        let found = match spread {
            Some(Spread { median, count, runs, .. }) if self.absent || count < runs => {
                let median = if median.is_finite() { short(median) } else { "infinite,".to_owned() };
                format!("{median} in {count} of {usable} runs")
            }
            Some(spread) => short(spread.median),
            None if holds => "absent".to_owned(),
            None => format!("unknown, {}", missing(report, variant, profile)),
        };
        let bound = format!("{variant} on {profile}: {} {found} (bound: {limits})", self.metric);
        Check { bound, measured, holds }
    }

    /// Whether the limits of a pair hold for its median, and their text.
    fn check_limits(&self, report: &Report, pair: (&str, &str), measured: Option<f64>) -> (bool, String) {
        let best = self.best_base(report, &self.compared_with(pair));
        let base = best.map(|(base, _)| base);
        let unit = best.map_or(Some(1.0), |(_, unit)| unit);
        // A multiple of 0 proves nothing.
        let is_nothing = base.is_some() && unit == Some(0.0);
        let holds = measured.zip(unit).is_some_and(|(measured, unit)| {
            self.at_least.is_none_or(|least| !is_nothing && measured >= least * unit)
                && self.at_most.is_none_or(|most| measured <= most * unit)
        });
        let words = |words: &str, limit: f64| {
            let number = short(limit);
            let Some(base) = base else { return format!("{words} {number}") };
            let name = self.base_name(base);
            match unit {
                Some(_) if is_nothing => format!("{words} {number} times {name}, which is 0"),
                Some(unit) => format!("{words} {}, {number} times {name}", short(limit * unit)),
                None if report.usable(base.0, base.1).next().is_none() => {
                    format!("{words} {number} times {name}, which has no usable run")
                }
                None => {
                    let spread = report.spread(base.0, base.1, &self.metric);
                    let part = spread.and_then(|spread| spread.part());
                    let part = part.map_or_else(String::new, |part| format!(" in more than {part} runs"));
                    format!("{words} {number} times {name}, which has no {}{part}", self.metric)
                }
            }
        };
        let limits =
            [self.at_least.map(|at| words("at least", at)), self.at_most.map(|at| words("at most", at))];
        (holds, limits.into_iter().flatten().collect::<Vec<_>>().join(" and "))
    }

    /// Name of the base, with its profile if the bound names one.
    fn base_name(&self, (variant, profile): (&str, &str)) -> String {
        match self.bases().first() {
            Some((_, Some(_))) => format!("{variant} on {profile}"),
            _ => variant.to_owned(),
        }
    }
}

/// Reason for a missing median.
fn missing(report: &Report, variant: &str, profile: &str) -> &'static str {
    if report.runs_of(variant, profile).next().is_none() {
        "it did not run"
    } else if report.usable(variant, profile).next().is_none() {
        "no run can be used"
    } else {
        "no usable run has it"
    }
}
