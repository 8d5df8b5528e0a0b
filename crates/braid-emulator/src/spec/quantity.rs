//! Values with units in link specifications, exact in both directions, and their errors.

use std::fmt;
use std::time::Duration;

/// A link specification that cannot be used. Its text is one line that names the key, the value and what would be
/// right: `unknown unit "m" in delay=50m: write 50ms or 50s`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LinkError {
    message: String,
}

impl LinkError {
    /// `fault` in the words `entry` of the specification.
    pub(crate) fn new(entry: &str, fault: Fault) -> Self {
        let Fault { problem, remedy } = fault;
        Self { message: format!("{problem} in {}: {remedy}", quoted(entry)) }
    }
}

/// Fault of a value, with a valid one; the caller adds the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    problem: String,
    remedy: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.problem, self.remedy)
    }
}

impl Fault {
    pub(crate) fn new(problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { problem: problem.into(), remedy: remedy.into() }
    }
}

/// `text` for an error line: nothing that could break the line, and not much of it.
pub(crate) fn quoted(text: &str) -> String {
    const LONGEST: usize = 60;
    let mut shown: String = text.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push_str("...");
    }
    shown.replace("\\\"", "\"").replace("\\'", "'")
}

/// `number * 10^places` when `number` is decimal digits with at most `places` behind the point, and fits.
pub(crate) fn scaled(number: &str, places: usize) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let well_formed = !whole.is_empty() && digits(whole) && digits(fraction) && fraction.len() <= places;
    if !well_formed || number.ends_with('.') {
        return None;
    }
    let padded = format!("{whole}{fraction:0<places$}");
    padded.parse().ok()
}

/// `value / 10^places` as the shortest decimal number.
pub(crate) fn unscaled(value: u64, places: u32) -> String {
    let unit = 10_u64.pow(places);
    let (whole, fraction) = (value / unit, value % unit);
    if fraction == 0 {
        return whole.to_string();
    }
    let fraction = format!("{fraction:0width$}", width = places as usize);
    format!("{whole}.{}", fraction.trim_end_matches('0'))
}

/// Splits `50ms` into `50` and `ms`.
fn split_unit(value: &str) -> (&str, &str) {
    let end = value.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(value.len());
    value.split_at(end)
}

/// Splits `50ms` into `50` and the meaning of its unit.
pub(crate) fn with_unit<'a, T: Copy>(
    value: &'a str,
    units: &[(&str, T)],
    remedy: &str,
) -> Result<(&'a str, T), Fault> {
    let (number, unit) = split_unit(value);
    match units.iter().find(|(name, _)| *name == unit) {
        Some((_, meaning)) => Ok((number, *meaning)),
        None if unit.is_empty() => Err(Fault::new("no unit", remedy)),
        None => Err(Fault::new(format!("unknown unit \"{}\"", quoted(unit)), remedy)),
    }
}

/// Fault of a number with this unit or without one.
pub(crate) fn bad_number(number: &str, remedy: &str) -> Fault {
    Fault::new(format!("bad number \"{}\"", quoted(number)), remedy)
}

/// Writes a value in the largest of these units that needs no point; the last one is 1.
pub(crate) fn in_largest_unit(value: u128, units: &[(u128, &str)]) -> String {
    let fits = units.iter().find(|(size, _)| value.is_multiple_of(*size));
    fits.map_or_else(String::new, |(size, unit)| format!("{}{unit}", value / size))
}

/// Reads `50ms`, `1.5s`, `200us` or `10ns`.
///
/// # Errors
/// The text is none of these.
pub fn parse_duration(value: &str) -> Result<Duration, Fault> {
    let (digits, _) = split_unit(value);
    let shown = quoted(if digits.is_empty() { "50" } else { digits });
    let remedy = format!("write {shown}ms or {shown}s");
    if digits.is_empty() {
        return Err(Fault::new("no number", remedy));
    }
    let (number, places) = with_unit(value, &[("ns", 0), ("us", 3), ("ms", 6), ("s", 9)], &remedy)?;
    let nanos = scaled(number, places);
    nanos.map(Duration::from_nanos).ok_or_else(|| bad_number(number, "write for example 50ms, 1.5s or 200us"))
}

/// Writes a duration in the largest unit that needs no point.
#[must_use]
pub fn duration_text(duration: Duration) -> String {
    in_largest_unit(duration.as_nanos(), &[(1_000_000_000, "s"), (1_000_000, "ms"), (1000, "us"), (1, "ns")])
}

/// Reads `64kb`, `1mb` or `1500b`; a kb is 1024 bytes, as for `tc`.
pub(crate) fn parse_bytes(value: &str) -> Result<u64, Fault> {
    let remedy = "write for example 64kb, 1mb or 1500b";
    let (number, size) = with_unit(value, &[("b", 1_u64), ("kb", 1 << 10), ("mb", 1 << 20)], remedy)?;
    let bytes = number.parse::<u64>().ok().and_then(|count| count.checked_mul(size));
    bytes.filter(|&bytes| bytes > 0).ok_or_else(|| bad_number(number, remedy))
}

/// Writes a number of bytes in the largest unit that needs no point.
pub(crate) fn bytes_text(bytes: u64) -> String {
    in_largest_unit(bytes.into(), &[(1 << 20, "mb"), (1 << 10, "kb"), (1, "b")])
}

/// Nanoseconds since the start of the link; a duration beyond 584 years counts as that.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

const ONE: u32 = 1_000_000_000;

/// Probability from 0 to 1, in units of 10^-9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Probability(u32);

impl Probability {
    /// Never.
    pub const NEVER: Self = Self(0);
    /// Always.
    pub const ALWAYS: Self = Self(ONE);

    /// `billionths` of 10^-9; more than 1 counts as 1.
    pub const fn from_billionths(billionths: u32) -> Self {
        Self(if billionths < ONE { billionths } else { ONE })
    }

    /// As a number from 0 to 1.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / f64::from(ONE)
    }

    /// Whether an evenly distributed `roll` falls inside.
    pub fn hits(self, roll: u64) -> bool {
        (u128::from(roll) * u128::from(ONE)) >> 64 < u128::from(self.0)
    }

    /// The probability of the opposite.
    pub(crate) fn complement(self) -> Self {
        Self(ONE - self.0)
    }

    /// The sum, for branches that exclude each other; `None` above 1.
    pub(crate) fn plus(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).filter(|&sum| sum <= ONE).map(Self)
    }

    /// Reads `1%` or `0.25%`.
    pub(crate) fn parse(value: &str) -> Result<Self, Fault> {
        let remedy = "write a share from 0% to 100%, for example 1% or 0.25%";
        let Some(number) = value.strip_suffix('%') else {
            return Err(Fault::new(format!("no % after \"{}\"", quoted(value)), remedy));
        };
        let bad = || Fault::new(format!("bad share \"{}\"", quoted(value)), remedy);
        let billionths = scaled(number, 7).and_then(|units| u32::try_from(units).ok()).ok_or_else(bad)?;
        if billionths > ONE {
            return Err(Fault::new(format!("{} is more than everything", quoted(value)), remedy));
        }
        Ok(Self(billionths))
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", unscaled(self.0.into(), 7))
    }
}
