//! The three formats give the same values, with the lines of each file.

use cueline_model::decode::{Node, Value};
use proptest::prelude::*;

use super::{json, toml, yaml};

/// The value at a path of keys and indices.
fn at<'n>(node: &'n Node, path: &[&str]) -> &'n Node {
    path.iter().fold(node, |node, step| match &node.value {
        Value::Map(entries) => {
            let found = entries.iter().find(|(key, _)| key == step);
            &found
                .unwrap_or_else(|| panic!("no {step} in {entries:?}"))
                .1
        }
        Value::List(items) => &items[step.parse::<usize>().expect("an index")],
        other => panic!("{step} of {other:?}"),
    })
}

const TOML: &str = "\
# jobs
[[job]]
name = \"a\"
schedule = { every = \"1s\" }
retry.max = 3
priority = 7

[[job]]
name = \"b\"
[job.schedule]
at = 2027-01-01T00:00:00Z
[job.handler]
command = [
  \"echo\",
  \"x\",
]
";

const YAML: &str = "\
# jobs
job:
  - name: a
    schedule: {every: 1s}
    retry:
      max: 3
    priority: 7
  - name: b
    schedule:
      at: 2027-01-01T00:00:00Z
    handler:
      command:
        - echo
        - x
";

const JSON: &str = r#"{
  "job": [
    { "name": "a",
      "schedule": {"every": "1s"},
      "retry": {
        "max": 3 },
      "priority": 7
    },
    { "name": "b", "schedule": {
      "at": "2027-01-01T00:00:00Z" },
      "handler": { "command": [
        "echo",
        "\u0078"]}}
  ]
}"#;

#[test]
fn each_value_knows_its_line() {
    let toml = toml::parse(TOML).ok().expect("TOML");
    let yaml = yaml::parse(YAML).ok().expect("YAML");
    let json = json::parse(JSON).ok().expect("JSON");
    let text = |t: &str| Value::Text(t.to_owned());
    for (path, value, lines) in [
        ("0 name", text("a"), [3, 3, 3]),
        ("0 schedule every", text("1s"), [4, 4, 4]),
        ("0 retry max", Value::Int(3), [5, 6, 6]),
        ("0 priority", Value::Int(7), [6, 7, 7]),
        ("1 name", text("b"), [9, 8, 9]),
        ("1 schedule at", text("2027-01-01T00:00:00Z"), [11, 10, 10]),
        ("1 handler command 1", text("x"), [15, 14, 13]),
    ] {
        let path: Vec<&str> = std::iter::once("job").chain(path.split(' ')).collect();
        for (node, line) in [&toml, &yaml, &json].into_iter().zip(lines) {
            let found = at(node, &path);
            assert_eq!((&found.value, found.line), (&value, Some(line)), "{path:?}");
        }
    }
    assert_eq!(at(&toml, &["job", "1"]).line, Some(8));
}

#[test]
fn json_may_escape_letters_beyond_the_first_plane_as_surrogate_pairs() {
    let node = json::parse(r#"{"a": "\ud83d\ude00"}"#).ok().expect("JSON");
    assert_eq!(at(&node, &["a"]).value, Value::Text("😀".to_owned()));
}

#[test]
fn deep_nesting_is_refused_and_overflows_nothing() {
    let deep = 200_000;
    assert!(toml::parse(&format!("a = {}", "[".repeat(deep))).is_err());
    assert!(json::parse(&"[".repeat(deep)).is_err());
    assert!(json::parse(&format!("{}{}", "[".repeat(100), "]".repeat(100))).is_err());
    assert!(yaml::parse(&"[".repeat(deep)).is_err());
    assert!(yaml::parse(&"- ".repeat(deep)).is_err());
}

#[test]
fn aliases_that_unfold_without_end_are_refused() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..10 {
        let below = format!("*a{}, ", level - 1).repeat(10);
        text = format!("{text}a{level}: &a{level} [{below}]\n");
    }
    assert!(yaml::parse(&text).is_err());
    let fine = "base: &b {max: 3}\nretry: *b\n";
    let node = yaml::parse(fine).ok().expect("YAML");
    assert_eq!(at(&node, &["retry", "max"]).value, Value::Int(3));
    assert!(yaml::parse("a: &a [*a]\n").is_err());
}

proptest! {
    #[test]
    fn no_text_makes_a_parser_panic(text in "[\\PC\n\t]{0,200}") {
        let _ = (toml::parse(&text), yaml::parse(&text), json::parse(&text));
    }

    #[test]
    fn any_json_is_walked_to_its_end(keys in prop::collection::vec("\\PC{0,8}", 0..6), number: i64) {
        let pairs = keys.iter().map(|key| (key.clone(), serde_json::json!([key, {"n": number}, null, true])));
        let value = serde_json::Value::Object(pairs.collect());
        for text in [value.to_string(), format!("{value:#}")] {
            let node = json::parse(&text).ok().expect("JSON");
            prop_assert_eq!(without_lines(node), Node::from(value.clone()));
        }
    }
}

fn without_lines(node: Node) -> Node {
    let value = match node.value {
        Value::List(items) => Value::List(items.into_iter().map(without_lines).collect()),
        Value::Map(entries) => Value::Map(
            entries
                .into_iter()
                .map(|(key, node)| (key, without_lines(node)))
                .collect(),
        ),
        other => other,
    };
    Node { line: None, value }
}
