//! Tests.
use super::*;

fn node(json: &str) -> Node {
    serde_json::from_str::<serde_json::Value>(json)
        .unwrap()
        .into()
}

#[test]
fn the_job_file_of_the_guide_is_read() {
    let specs = jobs(&node(
        r#"{"job": [
        {"name": "nightly-backup", "group": "default",
         "schedule": {"cron": "30 2 * * *", "timezone": "Europe/Berlin"},
         "misfire": "fire_once", "route": "consistent_hash", "block": "serial", "timeout": "30m",
         "retry": {"max": 3, "backoff": "exponential", "first": "10s", "cap": "10m"},
         "handler": {"shell": "pg_dump app"}, "params": "{\"full\": false}"},
        {"name": "verify-backup", "after": {"all": ["nightly-backup"], "on": "success"},
         "handler": {"command": ["/usr/local/bin/verify", "/backup/app.zst"]}}]}"#,
    ))
    .unwrap();
    assert_eq!(specs.len(), 2);
    assert_eq!(specs[1].schedule, crate::Schedule::Manual);
    let again: Vec<Node> = specs
        .iter()
        .map(|s| serde_json::to_value(s).unwrap().into())
        .collect();
    for (node, spec) in again.iter().zip(&specs) {
        assert_eq!(job(node).as_ref(), Ok(spec));
    }
}
