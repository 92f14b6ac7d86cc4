//! The fields of definitions, from the OpenAPI document.

use std::collections::BTreeSet;

use serde_json::Value;

use super::rows::{Kind, Row};

/// The fields of all kinds for which no row has a bad value.
pub(super) fn fields_without_a_row(rows: &[Row]) -> Vec<String> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/openapi.json");
    let document = std::fs::read_to_string(file).expect("a file");
    let document: Value = serde_json::from_str(&document).expect("JSON");
    let schemas = &document["components"]["schemas"];
    let mut missing = Vec::new();
    for (kind, word, schema) in Kind::ALL {
        let mut fields = BTreeSet::new();
        collect(schemas, &schemas[schema], "", 0, &mut fields);
        assert!(!fields.is_empty(), "{schema} has no fields");
        let of_kind: Vec<&Row> = rows.iter().filter(|row| row.kind == kind).collect();
        let lacking = fields
            .into_iter()
            .filter(|field| !of_kind.iter().any(|row| is_of(field, &row.field)));
        missing.extend(lacking.map(|field| format!("{word} {field}")));
    }
    missing
}

/// Whether a row's field is this one. `*` is the key of a table, and rows also say which item of a list they mean.
fn is_of(field: &str, of_row: &str) -> bool {
    let keys = |path: &str| -> Vec<String> {
        let without_index = |key: &str| key.split('[').next().unwrap_or_default().to_owned();
        path.split('.').map(without_index).collect()
    };
    let (wanted, own) = (keys(field), keys(of_row));
    let is_same = |(wanted, own): (&String, &String)| wanted == "*" || wanted == own;
    wanted.len() == own.len() && wanted.iter().zip(&own).all(is_same)
}

/// Collects the paths of all properties below a schema. A property that is only `null` is one that is not allowed there.
fn collect(
    schemas: &Value,
    schema: &Value,
    path: &str,
    depth: usize,
    fields: &mut BTreeSet<String>,
) {
    assert!(depth < 20, "the schema of {path} contains itself");
    let mut go_on = |schema: &Value, path: &str| collect(schemas, schema, path, depth + 1, fields);
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.rsplit('/').next().expect("a name");
        go_on(&schemas[name], path);
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        for one in schema[key].as_array().into_iter().flatten() {
            go_on(one, path);
        }
    }
    go_on_with_items(schema, path, &mut go_on);
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        if property.as_object().is_some_and(|p| p.len() == 1) && property["type"] == "null" {
            continue;
        }
        let path = if path.is_empty() {
            key.clone()
        } else {
            format!("{path}.{key}")
        };
        collect(schemas, property, &path, depth + 1, fields);
        fields.insert(path);
    }
}

fn go_on_with_items(schema: &Value, path: &str, go_on: &mut impl FnMut(&Value, &str)) {
    if schema["items"].is_object() {
        go_on(&schema["items"], path);
    }
    if schema["additionalProperties"].is_object() {
        go_on(&schema["additionalProperties"], &format!("{path}.*"));
    }
}
