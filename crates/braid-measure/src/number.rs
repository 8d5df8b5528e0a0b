//! Numbers for readers. NaN and infinity are a dash.

/// Placeholder of a missing number.
pub const NONE: &str = "–";

/// Numbers from here on have an exponent.
const HUGE: f64 = 1e15;

/// `value` with `digits` after the point, and commas between thousands from 10,000 on.
#[must_use]
pub fn fixed(value: f64, digits: u8) -> String {
    if !value.is_finite() {
        return NONE.into();
    }
    if value.abs() >= HUGE {
        return format!("{value:.3e}");
    }
    let text = format!("{value:.*}", usize::from(digits));
    let (sign, text) = match text.strip_prefix('-') {
        // Values that round to zero have no sign.
        Some(positive) if positive.bytes().all(|b| matches!(b, b'0' | b'.')) => ("", positive),
        Some(positive) => ("-", positive),
        None => ("", text.as_str()),
    };
    let (whole, fraction) = text.split_once('.').map_or((text, None), |(whole, rest)| (whole, Some(rest)));
    let mut shown = sign.to_owned();
    for (at, digit) in whole.chars().enumerate() {
        if whole.len() > 4 && at > 0 && (whole.len() - at).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    if let Some(fraction) = fraction {
        shown.push('.');
        shown.push_str(fraction);
    }
    shown
}

/// `value` with four significant digits at most, whole numbers below 10^15 in full.
#[must_use]
pub fn short(value: f64) -> String {
    if !value.is_finite() || value.abs() >= HUGE || value.fract() == 0.0 {
        return fixed(value, 0);
    }
    let digits = 3_i32.saturating_sub(exponent(value)).clamp(0, 12);
    let text = fixed(value, u8::try_from(digits).unwrap_or(0));
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Power of ten of the first digit of a number.
#[must_use]
pub fn exponent(value: f64) -> i32 {
    format!("{value:e}").split_once('e').and_then(|(_, power)| power.parse().ok()).unwrap_or(0)
}

/// A number of bytes with a decimal prefix.
#[must_use]
pub fn bytes(count: u64) -> String {
    let count = count as f64;
    let prefix = Prefix::of(count);
    format!("{} {}B", short(round_to_tenth(count / prefix.divisor)), prefix.symbol)
}

fn round_to_tenth(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// A decimal prefix of a unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prefix {
    /// Divisor of the value.
    pub divisor: f64,
    /// Symbol before the unit.
    pub symbol: &'static str,
}

impl Prefix {
    /// No prefix.
    pub const ONE: Self = Self { divisor: 1.0, symbol: "" };

    /// The largest that leaves at least 1 of `value`.
    #[must_use]
    pub fn of(value: f64) -> Self {
        const KNOWN: [Prefix; 5] = [
            Prefix { divisor: 1e15, symbol: "P" },
            Prefix { divisor: 1e12, symbol: "T" },
            Prefix { divisor: 1e9, symbol: "G" },
            Prefix { divisor: 1e6, symbol: "M" },
            Prefix { divisor: 1e3, symbol: "k" },
        ];
        KNOWN.into_iter().find(|prefix| value.abs() >= prefix.divisor).unwrap_or(Self::ONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_numbers() {
        let shown = [(0.0, 0), (-0.0001, 2), (9999.0, 0), (-1_234_567.891, 1), (f64::NAN, 2), (1e300, 0)]
            .map(|(value, digits)| fixed(value, digits));
        assert_eq!(shown, ["0", "0.00", "9999", "-1,234,567.9", NONE, "1.000e300"]);
    }

    #[test]
    fn short_numbers() {
        let shown =
            [0.997, 0.95, 5.0, 1495.0, 102_400_000.0, 12.3456, 0.000_123_456, f64::INFINITY].map(short);
        assert_eq!(shown, ["0.997", "0.95", "5", "1495", "102,400,000", "12.35", "0.0001235", NONE]);
    }

    #[test]
    fn bytes_have_a_prefix() {
        assert_eq!([0, 999, 1500, 102_400_000].map(bytes), ["0 B", "999 B", "1.5 kB", "102.4 MB"]);
    }
}
