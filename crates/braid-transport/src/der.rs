//! The two names of an X.509 certificate that authorisation asks for, read from its DER.
//!
//! Only certificates that the TLS library has verified come here; still, every length is checked.

const SEQUENCE: u8 = 0x30;
const OBJECT_ID: u8 = 0x06;
const OCTET_STRING: u8 = 0x04;
const BOOLEAN: u8 = 0x01;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const IA5_STRING: u8 = 0x16;
/// `[0]`: the version, which version 1 certificates leave out.
const VERSION: u8 = 0xa0;
/// `[3]`: the extensions.
const EXTENSIONS: u8 = 0xa3;
/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// 2.5.29.17
const SUBJECT_ALTERNATIVE_NAME: &[u8] = &[0x55, 0x1d, 0x11];

/// The one Common Name of the subject.
pub(crate) fn common_name(certificate: &[u8]) -> Option<&str> {
    let mut found = None;
    let mut names = Elements(subject_onwards(certificate)?.0.next_of(SEQUENCE)?);
    while let Some((_, set)) = names.next() {
        let mut attributes = Elements(set);
        while let Some((_, attribute)) = attributes.next() {
            let mut attribute = Elements(attribute);
            if attribute.next_of(OBJECT_ID)? != COMMON_NAME {
                continue;
            }
            let (tag, value) = attribute.next()?;
            if found.is_some() || !matches!(tag, UTF8_STRING | PRINTABLE_STRING | IA5_STRING) {
                return None;
            }
            found = Some(text(value)?);
        }
    }
    found
}

/// rfc822Name `[1]`, dNSName `[2]` and uniformResourceIdentifier `[6]`; the rest is left out.
pub(crate) fn alternative_names(certificate: &[u8]) -> Vec<&str> {
    let Some(mut names) = alternative_name_elements(certificate) else { return Vec::new() };
    let mut found = Vec::new();
    while let Some((tag, value)) = names.next() {
        if matches!(tag, 0x81 | 0x82 | 0x86) {
            found.extend(text(value));
        }
    }
    found
}

fn alternative_name_elements(certificate: &[u8]) -> Option<Elements<'_>> {
    let mut rest = subject_onwards(certificate)?.0;
    let extensions = loop {
        let (tag, value) = rest.next()?;
        if tag == EXTENSIONS {
            break value;
        }
    };
    let mut extensions = Elements(Elements(extensions).next_of(SEQUENCE)?);
    while let Some((_, extension)) = extensions.next() {
        let mut extension = Elements(extension);
        if extension.next_of(OBJECT_ID)? != SUBJECT_ALTERNATIVE_NAME {
            continue;
        }
        let (tag, value) = extension.next()?;
        let value = if tag == BOOLEAN { extension.next_of(OCTET_STRING)? } else { value };
        return Some(Elements(Elements(value).next_of(SEQUENCE)?));
    }
    None
}

/// Text that means the same to everybody who reads it.
fn text(value: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(value).ok()?;
    (!text.is_empty() && !text.chars().any(char::is_control)).then_some(text)
}

/// The fields of the certificate's body from the subject on.
struct Subject<'a>(Elements<'a>);

fn subject_onwards(certificate: &[u8]) -> Option<Subject<'_>> {
    let mut body = Elements(Elements(Elements(certificate).next_of(SEQUENCE)?).next_of(SEQUENCE)?);
    // version?, serial number, signature algorithm, issuer, validity
    let (tag, _) = body.next()?;
    let before_subject = if tag == VERSION { 4 } else { 3 };
    for _ in 0..before_subject {
        body.next()?;
    }
    Some(Subject(body))
}

/// The elements of a constructed value, one after the other.
struct Elements<'a>(&'a [u8]);

impl<'a> Elements<'a> {
    /// The next element if it has this tag.
    fn next_of(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next().filter(|(found, _)| *found == tag).map(|(_, value)| value)
    }

    /// Tag and value of the next element. `None` at the end and for anything malformed.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x84 => {
                let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (digits.iter().fold(0, |length, digit| (length << 8) | usize::from(*digit)), rest)
            }
            _ => return None,
        };
        let (value, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, value))
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn certificate(common_names: &[&str], names: Vec<SanType>) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "Weavers");
        for name in common_names {
            params.distinguished_name.push(DnType::CommonName, *name);
        }
        params.subject_alt_names = names;
        let key = KeyPair::generate().expect("key");
        params.self_signed(&key).expect("certificate").der().to_vec()
    }

    #[test]
    fn both_names_are_found() {
        let names = vec![
            SanType::DnsName("sensor.example".try_into().expect("name")),
            SanType::IpAddress([127, 0, 0, 1].into()),
            SanType::URI("urn:dev:7".try_into().expect("uri")),
        ];
        let der = certificate(&["sensor-7"], names);
        assert_eq!(common_name(&der), Some("sensor-7"));
        assert_eq!(alternative_names(&der), ["sensor.example", "urn:dev:7"]);
    }

    #[test]
    fn a_certificate_without_them_has_none() {
        let der = certificate(&[], Vec::new());
        assert_eq!(common_name(&der), None);
        assert!(alternative_names(&der).is_empty());
    }

    #[test]
    fn control_characters_are_no_identity() {
        let der = certificate(&["admin\u{0}.example"], Vec::new());
        assert_eq!(common_name(&der), None);
    }

    #[test]
    fn truncated_certificates_give_nothing_wrong() {
        let names = vec![SanType::DnsName("a.example".try_into().expect("name"))];
        let der = certificate(&["a"], names);
        for end in 0..der.len() {
            let part = der.get(..end).unwrap_or_default();
            assert_eq!(common_name(part), None, "{end} bytes");
            assert!(alternative_names(part).is_empty(), "{end} bytes");
        }
    }
}
