//! Requests with so many mistakes that naming them all would be the attack.

use cueline_model::decode::MAX_PROBLEMS;
use serde_json::{Value, json};

use crate::server::{Answer, Server};

/// The problems that an answer names. It is an error.
#[track_caller]
fn problems(answer: &Answer, status: u16) -> Vec<Value> {
    assert_eq!(answer.status.as_u16(), status, "{}", answer.status);
    let problem = answer.json();
    problem["errors"].as_array().expect("a list").clone()
}

#[tokio::test]
async fn an_answer_names_a_bounded_number_of_problems() {
    let server = Server::start().await;
    let fields: serde_json::Map<String, Value> =
        (0..100_000).map(|n| (format!("k{n}"), json!(1))).collect();
    let numbers = vec![json!("x"); 900];
    let jobs = vec![json!(7); 100_000];
    for (path, body, status, named) in [
        ("/jobs/apply", Value::Object(fields), 400, MAX_PROBLEMS + 1),
        (
            "/jobs/apply",
            json!({ "jobs": jobs }),
            422,
            MAX_PROBLEMS + 1,
        ),
        ("/dead/replay", json!({ "ids": numbers }), 400, 900),
    ] {
        let answer = server.post(path, &body).await;
        assert_eq!(problems(&answer, status).len(), named, "{path}");
    }
    let query = server.get(&format!("/jobs?{}", "&a".repeat(10_000))).await;
    let named = problems(&query, 400);
    assert_eq!(named.len(), MAX_PROBLEMS + 1);
    let last = named.last().expect("one").to_string();
    assert!(last.contains("the others are not listed"), "{last}");
    let states = server
        .get(&format!("/runs?{}", "&state=x".repeat(3_000)))
        .await;
    // The first 20 values, and that there are too many.
    assert_eq!(problems(&states, 400).len(), 21);
}

#[tokio::test]
async fn a_list_that_is_too_long_is_one_problem() {
    let server = Server::start().await;
    for value in [json!("x"), json!(1)] {
        let ids = vec![value; 500_000];
        let answer = server.post("/dead/delete", &json!({ "ids": ids })).await;
        let named = problems(&answer, 400);
        assert_eq!(named.len(), 1, "{named:?}");
        assert!(named[0].to_string().contains("at most 1000"), "{named:?}");
    }
}
