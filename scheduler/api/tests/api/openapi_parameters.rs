//! Headers and repeated parameters are accepted as by their schemas.

use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::openapi::{document, operations};
use crate::openapi_requests::schema;
use crate::server::{Server, TOKEN};

#[tokio::test]
async fn entity_tags_are_accepted_as_by_the_schema() {
    let server = Server::start().await;
    let schema = schema("EntityTags");
    let many = |count: usize| vec!["\"1-1\""; count].join(", ");
    for (tags, is_good) in [
        ("*", true),
        ("\"\"", true),
        ("\"17-3\"", true),
        ("W/\"17-3\",\"x\"", true),
        ("17-3", false),
        ("\"17-3", false),
        ("*, \"17-3\"", false),
        ("", false),
        (many(100).as_str(), true),
        (many(101).as_str(), false),
    ] {
        assert_eq!(schema.is_valid(&json!(tags)), is_good, "{tags}");
        let request = server.bare(Method::DELETE, "/api/v1/calendars/c");
        let request = request.bearer_auth(TOKEN).header("if-match", tags);
        let answer = server.send(request).await;
        let is_malformed = answer.status == StatusCode::BAD_REQUEST;
        assert_eq!(!is_malformed, is_good, "{tags}: {answer:?}");
    }
}

#[tokio::test]
async fn a_parameter_is_repeated_as_often_as_the_document_says() {
    let server = Server::start().await;
    let document = document();
    let mut seen = 0;
    for (path, method, operation) in operations(&document) {
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        for parameter in parameters.filter(|one| one["schema"]["type"] == "array") {
            let most = parameter["schema"]["maxItems"].as_u64().expect("a bound");
            assert_eq!((method, most), ("get", 20), "{path}: {parameter}");
            seen += 1;
        }
    }
    assert!(seen > 30, "{seen}");
    for (count, is_good) in [(20, true), (21, false)] {
        let query = vec!["group=a"; count].join("&");
        let answer = server.get(&format!("/forecast?{query}")).await;
        assert_eq!(answer.status.is_success(), is_good, "{count}: {answer:?}");
    }
}
