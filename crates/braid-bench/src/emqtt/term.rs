use std::collections::BTreeMap;

use serde::ser::{Serialize, SerializeMap, Serializer};

/// The largest length or number of elements that the external term format can say.
const LENGTH_MAX: usize = u32::MAX as usize;

/// A value of a payload: what JSON can say.
///
/// The fields of an object are in the order of their names' bytes, which is the order in which an Erlang map
/// writes binary keys.
#[derive(Debug, Clone, PartialEq)]
pub enum Term {
    /// `null`; the atom `null`.
    Null,
    /// `true` or `false`; the atoms of these names.
    Bool(bool),
    /// An integer.
    Integer(i128),
    /// Any other number; finite.
    Float(f64),
    /// A text; a binary of its UTF-8 bytes.
    Text(String),
    /// An array; a list.
    List(Vec<Term>),
    /// An object; a map with binary keys.
    Object(BTreeMap<String, Term>),
}

impl Term {
    /// The integer, if it is one in the range of the type.
    pub(crate) fn integer<T: TryFrom<i128>>(&self) -> Option<T> {
        if let Self::Integer(value) = self { T::try_from(*value).ok() } else { None }
    }

    /// The text, if it is one.
    pub(crate) fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

impl Serialize for Term {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => to.serialize_unit(),
            Self::Bool(value) => to.serialize_bool(*value),
            Self::Integer(value) => to.serialize_i128(*value),
            Self::Float(value) => to.serialize_f64(*value),
            Self::Text(value) => to.serialize_str(value),
            Self::List(values) => to.collect_seq(values),
            Self::Object(fields) => {
                let mut map = to.serialize_map(Some(fields.len()))?;
                for (name, value) in fields {
                    map.serialize_entry(name, value)?;
                }
                map.end()
            }
        }
    }
}

/// The tags of terms.
pub(crate) mod tag {
    pub(crate) const NEW_FLOAT: u8 = 70;
    pub(crate) const SMALL_INTEGER: u8 = 97;
    pub(crate) const INTEGER: u8 = 98;
    pub(crate) const FLOAT: u8 = 99;
    pub(crate) const ATOM: u8 = 100;
    pub(crate) const SMALL_TUPLE: u8 = 104;
    pub(crate) const LARGE_TUPLE: u8 = 105;
    pub(crate) const NIL: u8 = 106;
    pub(crate) const STRING: u8 = 107;
    pub(crate) const LIST: u8 = 108;
    pub(crate) const BINARY: u8 = 109;
    pub(crate) const SMALL_BIG: u8 = 110;
    pub(crate) const LARGE_BIG: u8 = 111;
    pub(crate) const SMALL_ATOM: u8 = 115;
    pub(crate) const MAP: u8 = 116;
    pub(crate) const ATOM_UTF8: u8 = 118;
    pub(crate) const SMALL_ATOM_UTF8: u8 = 119;
}

/// Writes Erlang's external term format, version 131, as `term_to_binary` of OTP 26 and later does.
///
/// Source: the "External Term Format" chapter of the ERTS manual.
#[derive(Debug)]
pub struct Eterm;

impl Eterm {
    /// The first byte of a term that stands alone.
    pub const VERSION: u8 = 131;

    /// Appends the term, without a version byte.
    pub fn put(out: &mut Vec<u8>, term: &Term) {
        match term {
            Term::Null => Self::put_atom(out, "null"),
            Term::Bool(true) => Self::put_atom(out, "true"),
            Term::Bool(false) => Self::put_atom(out, "false"),
            Term::Integer(value) => Self::put_integer(out, *value),
            Term::Float(value) => {
                out.push(tag::NEW_FLOAT);
                out.extend_from_slice(&value.to_be_bytes());
            }
            Term::Text(text) => Self::put_binary(out, text.as_bytes()),
            Term::List(terms) => Self::put_list(out, terms),
            Term::Object(fields) => {
                Self::put_map_head(out, fields.len());
                for (name, value) in fields {
                    Self::put_binary(out, name.as_bytes());
                    Self::put(out, value);
                }
            }
        }
    }

    /// Appends what stands before the keys and values of a map of `len` entries.
    pub fn put_map_head(out: &mut Vec<u8>, len: usize) {
        out.push(tag::MAP);
        put_length(out, len);
    }

    /// Appends a binary.
    pub fn put_binary(out: &mut Vec<u8>, bytes: &[u8]) {
        Self::put_binary_head(out, bytes.len());
        out.extend_from_slice(bytes);
    }

    /// Appends what stands before the `len` bytes of a binary.
    pub fn put_binary_head(out: &mut Vec<u8>, len: usize) {
        out.push(tag::BINARY);
        put_length(out, len);
    }

    /// Appends an integer in the shortest of the three forms.
    pub fn put_integer(out: &mut Vec<u8>, value: i128) {
        if let Ok(small) = u8::try_from(value) {
            out.extend_from_slice(&[tag::SMALL_INTEGER, small]);
        } else if let Ok(medium) = i32::try_from(value) {
            out.push(tag::INTEGER);
            out.extend_from_slice(&medium.to_be_bytes());
        } else {
            let digits = value.unsigned_abs().to_le_bytes();
            let len = digits.iter().rposition(|&digit| digit != 0).map_or(0, |last| last + 1);
            let count = u8::try_from(len).unwrap_or(u8::MAX);
            out.extend_from_slice(&[tag::SMALL_BIG, count, u8::from(value < 0)]);
            out.extend_from_slice(digits.get(..len).unwrap_or(&digits));
        }
    }

    fn put_list(out: &mut Vec<u8>, terms: &[Term]) {
        if terms.is_empty() {
            out.push(tag::NIL);
            return;
        }
        // A list of bytes is what Erlang calls a string, and has a form of its own.
        if let (Some(bytes), Ok(len)) = (as_bytes(terms), u16::try_from(terms.len())) {
            out.push(tag::STRING);
            out.extend_from_slice(&len.to_be_bytes());
            out.extend_from_slice(&bytes);
            return;
        }
        out.push(tag::LIST);
        put_length(out, terms.len());
        for term in terms {
            Self::put(out, term);
        }
        out.push(tag::NIL);
    }

    fn put_atom(out: &mut Vec<u8>, name: &'static str) {
        let len = u8::try_from(name.len()).unwrap_or(u8::MAX);
        out.extend_from_slice(&[tag::SMALL_ATOM_UTF8, len]);
        out.extend_from_slice(name.as_bytes());
    }
}

fn as_bytes(terms: &[Term]) -> Option<Vec<u8>> {
    terms.iter().map(Term::integer).collect()
}

/// No payload of MQTT is longer than 256 MiB, so the cap is never met.
fn put_length(out: &mut Vec<u8>, len: usize) {
    let len = u32::try_from(len.min(LENGTH_MAX)).unwrap_or(u32::MAX);
    out.extend_from_slice(&len.to_be_bytes());
}
