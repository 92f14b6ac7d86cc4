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

/// The volumes of a service: name, path in the container, and whether it can only read.
fn volumes(service: &Value) -> Vec<(&str, &str, bool)> {
    let parts = texts(&service["volumes"]).into_iter().map(|volume| {
        let (name, path) = volume.split_once(':').expect("name:path");
        match path.split_once(':') {
            Some((path, mode)) => (name, path, mode == "ro"),
            None => (name, path, false),
        }
    });
    parts.collect()
}

/// The service that makes the secrets of the others.
const SECRETS: &str = "secrets";

#[test]
fn workers_reach_the_broker_and_neither_the_database_nor_a_scheduler() {
    for (broker, text) in FILES {
        let compose = load(text);
        let database = networks(&compose, "postgres");
        let queues = networks(&compose, broker);
        let of_worker = networks(&compose, "worker");
        assert!(!of_worker.is_disjoint(&queues), "{broker}");
        assert!(of_worker.is_disjoint(&database), "{broker}");
        for scheduler in ["scheduler-1", "scheduler-2"] {
            let of_scheduler = networks(&compose, scheduler);
            assert!(!of_scheduler.is_disjoint(&database), "{scheduler}");
            assert!(!of_scheduler.is_disjoint(&queues), "{scheduler}");
            assert!(
                of_worker.is_disjoint(&of_scheduler),
                "{broker}: {scheduler}"
            );
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
            if name == SECRETS {
                assert_eq!(service["network_mode"], "none", "{broker}");
            } else {
                assert!(service["network_mode"].is_null(), "{broker}: {name}");
            }
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
        let readers = [
            ("postgres", "postgres"),
            (broker, "broker"),
            ("scheduler-1", "scheduler"),
            ("scheduler-2", "scheduler"),
            ("worker", "worker"),
            ("cli", "client"),
        ];
        for (name, service) in services(&compose) {
            let of_secrets = volumes(service)
                .into_iter()
                .filter(|(volume, ..)| volume.contains("-secrets-"));
            let found: BTreeSet<_> = of_secrets.collect();
            let volume = |owner| format!("{broker}-secrets-{owner}");
            let folder = |owner| format!("/run/secrets/{owner}");
            if name == SECRETS {
                let owners: BTreeSet<_> = readers.iter().map(|(_, owner)| *owner).collect();
                assert_eq!(found.len(), owners.len(), "{broker}: {found:?}");
                for owner in owners {
                    let (volume, folder) = (volume(owner), folder(owner));
                    assert!(found.contains(&(volume.as_str(), folder.as_str(), false)));
                }
                continue;
            }
            let (_, owner) = readers
                .iter()
                .find(|(reader, _)| *reader == name)
                .expect("a reader");
            let expected = (volume(owner), folder(owner));
            let expected = BTreeSet::from([(expected.0.as_str(), expected.1.as_str(), true)]);
            assert_eq!(found, expected, "{broker}: {name}");
            for (variable, value) in service["environment"].as_object().into_iter().flatten() {
                let is_own = value
                    .as_str()
                    .is_some_and(|path| path.starts_with(&format!("{}/", folder(owner))));
                assert!(
                    is_own || !is_secret(variable),
                    "{broker}: {name} {variable}"
                );
            }
        }
    }
}

#[test]
fn workers_share_their_state_and_no_other_container_has_it() {
    for (broker, text) in FILES {
        let compose = load(text);
        let state = format!("{broker}-workers");
        for (name, service) in services(&compose) {
            let has_it = volumes(service).iter().any(|(volume, ..)| *volume == state);
            assert_eq!(has_it, name == "worker", "{broker}: {name}");
        }
    }
}

#[test]
fn a_merge_key_gives_what_the_mapping_itself_does_not_have() {
    let merged = load("base: &base { a: 1, b: [x] }\none:\n  <<: *base\n  a: true\n  c:\n");
    let expected = serde_json::json!({ "a": true, "b": ["x"], "c": null });
    assert_eq!(merged["one"], expected);
}
