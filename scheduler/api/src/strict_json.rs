//! JSON in which no key is given twice.
//!
//! Of two values for one key a lenient parser takes the last one. What a proxy or a review has seen may be the first.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// The longest part of a key in a message.
const MAX_SHOWN_CHARS: usize = 80;

/// Parses one value. Values may be nested 127 levels deep; `serde_json` has that limit.
pub(crate) fn parse(bytes: &[u8]) -> serde_json::Result<Value> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = Strict.deserialize(&mut json)?;
    json.end()?;
    Ok(value)
}

struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Value, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Strict)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if map.contains_key(&key) {
                let shown: String = key.chars().take(MAX_SHOWN_CHARS).collect();
                return Err(A::Error::custom(format!(
                    "the key {shown:?} is given twice; give it once"
                )));
            }
            let value = entries.next_value_seed(Strict)?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_kind_of_value_is_read_as_serde_json_reads_it() {
        let text =
            r#"{"a": [null, true, -1, 18446744073709551615, 1.5, "x\u0000\n"], "b": {"a": {}}}"#;
        let lenient: Value = serde_json::from_str(text).expect("JSON");
        assert_eq!(parse(text.as_bytes()).expect("JSON"), lenient);
        assert_eq!(parse(b" 7 ").expect("JSON"), json!(7));
    }

    #[test]
    fn a_key_that_is_given_twice_is_refused_with_its_place() {
        for text in [r#"{"a": 1, "a": 1}"#, r#"{"b": [{"a": 1, "\u0061": 2}]}"#] {
            let error = parse(text.as_bytes()).expect_err(text).to_string();
            assert!(error.contains("\"a\" is given twice"), "{error}");
            assert!(error.contains("line 1"), "{error}");
        }
    }

    #[test]
    fn text_after_the_value_and_deep_nesting_are_refused() {
        for text in ["{} {}".to_owned(), "[".repeat(100_000), "[[]".to_owned()] {
            assert!(parse(text.as_bytes()).is_err());
        }
    }
}
