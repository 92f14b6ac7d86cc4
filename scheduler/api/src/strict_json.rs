//! JSON in which no key is given twice, and in which a whole number is one however it is written.
//!
//! Of two values for one key a lenient parser takes the last one. What a proxy or a review has seen may be the first.
//!
//! JSON and JSON Schema know no type of number but one: `3`, `3.0` and `3e0` are the same whole number.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// The longest part of a key in a message.
const MAX_SHOWN_CHARS: usize = 80;

/// The largest whole number that is read from a text with a fraction or an exponent: 2^53 - 1. Beyond it, several texts
/// have the same floating-point number, and the one that was meant is not known.
const MAX_EXACT: f64 = 9_007_199_254_740_991.0;

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
        Ok(whole(value).map_or_else(
            || Number::from_f64(value).map_or(Value::Null, Value::Number),
            Value::from,
        ))
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

/// The whole number that was written with a fraction or an exponent, if it is one and known exactly.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a whole number within 2^53 is the same as an integer"
)]
fn whole(value: f64) -> Option<i64> {
    let is_whole = value.abs() <= MAX_EXACT && value.fract() == 0.0;
    is_whole.then_some(value as i64)
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
    fn a_whole_number_is_the_same_in_each_spelling() {
        let read = |text: &str| parse(text.as_bytes()).expect("JSON");
        for text in ["3909.0", "3.909e3", "39090E-1"] {
            assert_eq!(read(text), json!(3909), "{text}");
        }
        assert_eq!(read("-0.0"), json!(0));
        assert_eq!(read("[-5.0]"), json!([-5]));
        assert_eq!(
            read("9007199254740991.0").as_i64(),
            Some(9_007_199_254_740_991)
        );
        for other in [
            "0.5",
            "1e-300",
            "9007199254740992.0",
            "-1e19",
            "18446744073709551616",
        ] {
            assert_eq!(read(other).as_i64(), None, "{other}");
            assert!(read(other).is_f64(), "{other}");
        }
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
