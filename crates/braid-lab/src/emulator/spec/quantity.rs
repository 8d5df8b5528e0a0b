//! Numbers with units, read and written without rounding: what is printed reads back as the same value.

use std::time::Duration;

use super::error::{Fault, quoted};

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
pub(crate) fn split_unit(value: &str) -> (&str, &str) {
    let end = value.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(value.len());
    value.split_at(end)
}

/// Reads `50ms`, `1.5s`, `200us` or `10ns`.
pub(crate) fn parse_duration(value: &str) -> Result<Duration, Fault> {
    let (number, unit) = split_unit(value);
    let shown = if number.is_empty() { "50" } else { number };
    let remedy = || format!("write {}ms or {}s", quoted(shown), quoted(shown));
    if number.is_empty() {
        return Err(Fault::new("no number", remedy()));
    }
    let places = match unit {
        "ns" => 0,
        "us" => 3,
        "ms" => 6,
        "s" => 9,
        "" => return Err(Fault::new("no unit", remedy())),
        other => return Err(Fault::new(format!("unknown unit \"{}\"", quoted(other)), remedy())),
    };
    let bad =
        || Fault::new(format!("bad number \"{}\"", quoted(number)), "write for example 50ms, 1.5s or 200us");
    scaled(number, places).map(Duration::from_nanos).ok_or_else(bad)
}

/// Writes a duration in the largest unit that needs no point.
pub(crate) fn duration_text(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    for (size, unit) in [(1_000_000_000, "s"), (1_000_000, "ms"), (1000, "us")] {
        if nanos.is_multiple_of(size) {
            return format!("{}{unit}", nanos / size);
        }
    }
    format!("{nanos}ns")
}

/// Reads `64kb`, `1mb` or `1500b`; a kb is 1024 bytes, as for `tc`.
pub(crate) fn parse_bytes(value: &str) -> Result<u64, Fault> {
    let (number, unit) = split_unit(value);
    let remedy = "write for example 64kb, 1mb or 1500b";
    let size: u64 = match unit {
        "b" => 1,
        "kb" => 1 << 10,
        "mb" => 1 << 20,
        "" => return Err(Fault::new("no unit", remedy)),
        other => return Err(Fault::new(format!("unknown unit \"{}\"", quoted(other)), remedy)),
    };
    let bytes = number.parse::<u64>().ok().and_then(|count| count.checked_mul(size));
    bytes
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| Fault::new(format!("bad number \"{}\"", quoted(number)), remedy))
}

/// Writes a number of bytes in the largest unit that needs no point.
pub(crate) fn bytes_text(bytes: u64) -> String {
    match bytes {
        _ if bytes.is_multiple_of(1 << 20) => format!("{}mb", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}kb", bytes >> 10),
        _ => format!("{bytes}b"),
    }
}

/// Nanoseconds since the start of the link; a duration beyond 584 years counts as that.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
