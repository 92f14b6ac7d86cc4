//! What the compose files let each container reach, publish and read.

use std::collections::BTreeSet;

use saphyr::{LoadableYamlNode as _, Yaml};
use serde_json::{Map, Value};

/// The broker's service in each file, and the file.
const FILES: [(&str, &str); 2] = [
    ("nats", include_str!("../../../infra/compose/nats.yaml")),
    (
        "rabbitmq",
        include_str!("../../../infra/compose/rabbitmq.yaml"),
    ),
];

/// A YAML node as JSON, with its merge keys (`<<`) resolved.
fn json(node: &Yaml<'_>) -> Value {
    if let Some(mapping) = node.as_mapping() {
        let (mut inherited, mut own) = (Map::new(), Map::new());
        for (key, value) in mapping {
            match (key.as_str().expect("keys are texts"), json(value)) {
                ("<<", Value::Object(base)) => inherited = base,
                (key, value) => {
                    own.insert(key.to_owned(), value);
                }
            }
        }
        inherited.extend(own);
        return Value::Object(inherited);
    }
    if let Some(sequence) = node.as_sequence() {
        return Value::Array(sequence.iter().map(json).collect());
    }
    let number = node.as_integer().map(Value::from);
    let truth = node.as_bool().map(Value::from);
    let text = node.as_str().map(Value::from);
    number.or(truth).or(text).unwrap_or(Value::Null)
}

fn load(text: &str) -> Value {
    let documents = Yaml::load_from_str(text).expect("YAML");
    json(documents.first().expect("a document"))
}

fn services(compose: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let services = compose["services"].as_object().expect("services");
    services
        .iter()
        .map(|(name, service)| (name.as_str(), service))
}

/// The texts of a list; none if there is no list.
fn texts(list: &Value) -> BTreeSet<&str> {
    let items = list.as_array().into_iter().flatten();
    items.filter_map(Value::as_str).collect()
}

/// The networks of a service. Without any it would join the default one, together with all others.
fn networks<'a>(compose: &'a Value, service: &str) -> BTreeSet<&'a str> {
    let networks = texts(&compose["services"][service]["networks"]);
    assert!(!networks.is_empty(), "{service} has no networks");
    networks
}

#[test]
fn workers_reach_the_broker_and_neither_the_database_nor_a_scheduler() {
    for (broker, text) in FILES {
        let compose = load(text);
        let database = networks(&compose, "postgres");
        let queues = networks(&compose, broker);
        let named =
            |role: &'static str| services(&compose).filter(move |(name, _)| name.starts_with(role));
        assert_eq!(
            (named("scheduler-").count(), named("worker-").count()),
            (2, 3)
        );
        for (scheduler, _) in named("scheduler-") {
            let of_scheduler = networks(&compose, scheduler);
            assert!(!of_scheduler.is_disjoint(&database), "{scheduler}");
            assert!(!of_scheduler.is_disjoint(&queues), "{scheduler}");
            for (worker, _) in named("worker-") {
                let of_worker = networks(&compose, worker);
                assert!(!of_worker.is_disjoint(&queues), "{broker}: {worker}");
                assert!(of_worker.is_disjoint(&database), "{broker}: {worker}");
                assert!(of_worker.is_disjoint(&of_scheduler), "{broker}: {worker}");
            }
        }
    }
}

#[test]
fn the_database_and_the_broker_have_no_way_out() {
    for (broker, text) in FILES {
        let compose = load(text);
        for service in ["postgres", broker] {
            for network in networks(&compose, service) {
                let internal = &compose["networks"][network]["internal"];
                assert_eq!(*internal, true, "{broker}: network {network} of {service}");
            }
        }
    }
}

#[test]
fn only_the_api_is_published_and_only_on_this_machine() {
    for (broker, text) in FILES {
        let compose = load(text);
        for (name, service) in services(&compose) {
            assert!(service["network_mode"].is_null(), "{broker}: {name}");
            let ports = texts(&service["ports"]);
            let api = name.starts_with("scheduler-");
            assert_eq!(ports.len(), usize::from(api), "{broker}: {name} {ports:?}");
            for port in ports {
                let local = port.starts_with("127.0.0.1:") && port.ends_with(":7800");
                assert!(local, "{broker}: {name} publishes {port}");
            }
        }
    }
}

#[test]
fn no_container_can_gain_rights() {
    for (broker, text) in FILES {
        let compose = load(text);
        for (name, service) in services(&compose) {
            let options = texts(&service["security_opt"]);
            assert!(
                options.contains("no-new-privileges:true"),
                "{broker}: {name}"
            );
            assert!(service["privileged"].is_null(), "{broker}: {name}");
            if service["build"].is_object() {
                assert_eq!(
                    texts(&service["cap_drop"]),
                    BTreeSet::from(["ALL"]),
                    "{name}"
                );
                assert_eq!(service["read_only"], true, "{broker}: {name}");
            }
        }
    }
}

/// Whether a variable of this name holds a secret, or names the file of one.
fn is_secret(variable: &str) -> bool {
    ["PASSWORD", "TOKEN", "KEY", "STORE", "BROKER", "SECRET"]
        .iter()
        .any(|word| variable.contains(word))
}

#[test]
fn secrets_are_files_and_each_container_has_only_its_own() {
    for (broker, text) in FILES {
        let compose = load(text);
        for (secret, source) in compose["secrets"].as_object().expect("secrets") {
            assert_eq!(source["file"], format!("./secrets/{secret}"), "{broker}");
        }
        for (name, service) in services(&compose) {
            let secrets = texts(&service["secrets"]);
            let environment = service["environment"].as_object();
            for (variable, value) in environment.into_iter().flatten() {
                let file = value
                    .as_str()
                    .and_then(|text| text.strip_prefix("/run/secrets/"));
                match file {
                    Some(file) => assert!(secrets.contains(file), "{broker}: {name} {variable}"),
                    None => assert!(!is_secret(variable), "{broker}: {name} {variable}"),
                }
            }
            if name.starts_with("worker-") {
                let account = format!("{broker}-{name}-url");
                let own = BTreeSet::from(["trusted.keys", "enrol.token", account.as_str()]);
                assert_eq!(secrets, own, "{broker}: {name}");
            }
        }
    }
}

#[test]
fn a_merge_key_gives_what_the_mapping_itself_does_not_have() {
    let merged = load("base: &base { a: 1, b: [x] }\none:\n  <<: *base\n  a: true\n  c:\n");
    let expected = serde_json::json!({ "a": true, "b": ["x"], "c": null });
    assert_eq!(merged["one"], expected);
}
