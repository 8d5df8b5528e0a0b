//! Bytes in text form: pairs of hexadecimal digits, spaces anywhere, text between quotes.

/// `30 03 0001 "a"` as bytes.
#[track_caller]
pub(crate) fn bytes(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for (index, part) in text.split('"').enumerate() {
        if index % 2 == 1 {
            out.extend_from_slice(part.as_bytes());
            continue;
        }
        let digits: Vec<u8> = part
            .chars()
            .filter(|c| !c.is_whitespace())
            .map(|c| u8::try_from(c.to_digit(16).unwrap_or_else(|| panic!("{c:?} in {text:?}"))).unwrap())
            .collect();
        assert!(digits.len().is_multiple_of(2), "half a byte in {text:?}");
        out.extend(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]));
    }
    out
}

/// Bytes as hexadecimal digits with spaces between.
pub(crate) fn text(bytes: &[u8]) -> String {
    let pairs: Vec<_> = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
    pairs.join(" ")
}
