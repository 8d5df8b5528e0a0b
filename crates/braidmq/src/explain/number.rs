//! Numbers as the drafts of qlog had them over the years: as JSON numbers, and as strings.

use serde_json::Value;

/// A count, an offset or an identifier.
pub(super) fn whole(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64().or_else(|| {
            let float = number.as_f64()?;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "checked to be whole and in range"
            )]
            (float.fract() == 0.0 && (0.0..9.0e15).contains(&float)).then_some(float as u64)
        }),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

/// A time or a duration.
pub(super) fn real(value: &Value) -> Option<f64> {
    let float = match value {
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => text.parse().ok()?,
        _ => return None,
    };
    float.is_finite().then_some(float)
}

/// A count of bytes or packets, for a ratio or a place in a picture.
#[expect(clippy::cast_precision_loss, reason = "nobody sees the 53rd bit of a ratio")]
pub(super) fn float(count: u64) -> f64 {
    count as f64
}

/// Milliseconds as they are told: to the microsecond, which is what logs have.
pub(super) fn told(milliseconds: f64) -> f64 {
    (milliseconds * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_come_in_every_spelling() {
        for value in [json!(12), json!(12.0), json!("12")] {
            assert_eq!(whole(&value), Some(12), "{value}");
            assert_eq!(real(&value), Some(12.0), "{value}");
        }
        for value in [json!(-1), json!(1.5), json!(1e300), json!("x"), json!(null), json!([1])] {
            assert_eq!(whole(&value), None, "{value}");
        }
        assert_eq!(whole(&json!(u64::MAX)), Some(u64::MAX));
        assert_eq!(real(&json!("inf")), None);
        assert_eq!(real(&json!("-0.5")), Some(-0.5));
    }
}
