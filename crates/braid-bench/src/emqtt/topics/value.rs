//! One value of a JSON5 document, as a [`Term`].

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::emqtt::Term;

/// Deeper values are refused: reading them takes the stack.
const DEPTH_MAX: usize = 32;

/// Seed that lets a visitor read whatever comes.
pub(super) struct Seed<V>(pub(super) V);

impl<'de, V: Visitor<'de>> DeserializeSeed<'de> for Seed<V> {
    type Value = V::Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<V::Value, D::Error> {
        from.deserialize_any(self.0)
    }
}

/// Reads one value and hands it to `take`, whose error then is at the value's place.
pub(super) struct Value<F> {
    depth: usize,
    take: F,
}

pub(super) type Keep = fn(Term) -> Result<Term, String>;

impl Value<Keep> {
    /// Whatever it is.
    pub(super) fn any() -> Seed<Self> {
        Seed(Self { depth: DEPTH_MAX, take: Ok })
    }

    /// Value that `read` parses.
    pub(super) fn of<T>(
        read: impl FnOnce(&Term) -> Result<T, String>,
    ) -> Seed<Value<impl FnOnce(Term) -> Result<T, String>>> {
        Seed(Value { depth: DEPTH_MAX, take: move |term: Term| read(&term) })
    }
}

impl<F> Value<F> {
    fn below<E: de::Error>(&self) -> Result<Value<Keep>, E> {
        match self.depth.checked_sub(1) {
            Some(depth) => Ok(Value { depth, take: Ok }),
            None => Err(E::custom(format!("lists and objects nested deeper than {DEPTH_MAX}: flatten them"))),
        }
    }
}

impl<'de, T, F: FnOnce(Term) -> Result<T, String>> Visitor<'de> for Value<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<T, E> {
        (self.take)(Term::Null).map_err(E::custom)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<T, E> {
        (self.take)(Term::Bool(value)).map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<T, E> {
        (self.take)(Term::Integer(value.into())).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<T, E> {
        (self.take)(Term::Integer(value.into())).map_err(E::custom)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<T, E> {
        if !value.is_finite() {
            return Err(E::custom(format!(
                "{value} is no number that a payload can hold: write a finite one"
            )));
        }
        (self.take)(Term::Float(value)).map_err(E::custom)
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<T, E> {
        (self.take)(Term::Text(value.to_owned())).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<T, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(Seed(self.below()?))? {
            values.push(value);
        }
        (self.take)(Term::List(values)).map_err(de::Error::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let mut fields = BTreeMap::new();
        while let Some(name) = map.next_key()? {
            fields.insert(name, map.next_value_seed(Seed(self.below()?))?);
        }
        (self.take)(Term::Object(fields)).map_err(de::Error::custom)
    }
}
