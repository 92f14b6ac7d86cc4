//! The images of others that `infra` names: each has a tag for people and a digest for programs.

use std::collections::BTreeMap;
use std::path::Path;

/// The image that `infra/docker/Dockerfile` builds. It is not pulled, so it has no digest.
const OWN: &str = "cueline";

/// The digests that a file gives by a variable, so that stand-ins of `infra/dev/images` can do without: `ARG NAME=@sha256:…` in a
/// Dockerfile, `${NAME-@sha256:…}` in a compose file.
fn digests(text: &str) -> Vec<(&str, &str)> {
    let in_dockerfiles = text
        .lines()
        .filter_map(|line| line.strip_prefix("ARG ")?.split_once('='));
    let in_compose_files = text
        .split("${")
        .skip(1)
        .filter_map(|rest| rest.split_once('}')?.0.split_once('-'));
    in_dockerfiles
        .chain(in_compose_files)
        .filter(|(name, _)| name.ends_with("_DIGEST"))
        .collect()
}

/// The image with the digest that its variable has by default.
fn resolved(image: &str, text: &str) -> String {
    let Some((tag, variable)) = image.split_once("${") else {
        return image.to_owned();
    };
    let name = variable.split(['-', '}']).next().unwrap_or_default();
    let mut known = digests(text).into_iter();
    match known.find(|(known, _)| *known == name) {
        Some((_, digest)) => format!("{tag}{digest}"),
        None => image.to_owned(),
    }
}

/// The images of others that a Dockerfile or a compose file names, with their digests.
fn images(text: &str) -> Vec<String> {
    let mut stages = vec!["scratch"];
    let mut found: Vec<&str> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some((&first, rest)) = words.split_first() else {
            continue;
        };
        if first == "image:" {
            found.extend(rest.first().map(|image| image.trim_matches(['"', '\''])));
        } else if first.eq_ignore_ascii_case("from") {
            let mut rest = rest.iter().filter(|word| !word.starts_with("--"));
            found.extend(rest.next());
            // "AS name": a later stage may begin with this one.
            stages.extend(rest.nth(1));
        } else if first.eq_ignore_ascii_case("copy") {
            found.extend(rest.iter().filter_map(|word| word.strip_prefix("--from=")));
        }
    }
    found.retain(|image| !stages.contains(image) && image.split(':').next() != Some(OWN));
    found.iter().map(|image| resolved(image, text)).collect()
}

/// Whether the image has a tag and a whole digest.
fn is_pinned(image: &str) -> bool {
    let Some((name, digest)) = image.split_once("@sha256:") else {
        return false;
    };
    let hexadecimal = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let tagged = name
        .rsplit('/')
        .next()
        .is_some_and(|last| last.contains(':'));
    tagged && digest.len() == 64 && digest.bytes().all(hexadecimal)
}

/// The Dockerfiles and YAML files below this folder, with their texts. Secrets that were made for a trial are left out.
fn collect(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).expect("lists") {
        let path = entry.expect("lists").path();
        let name = path.file_name().expect("a name").to_string_lossy();
        let extension = path.extension().and_then(|kind| kind.to_str());
        if path.is_dir() {
            if name != "secrets" {
                collect(&path, found);
            }
        } else if name.starts_with("Dockerfile") || matches!(extension, Some("yaml" | "yml")) {
            let text = std::fs::read_to_string(&path).expect("reads");
            found.push((path.display().to_string(), text));
        }
    }
}

/// The Dockerfiles and YAML files of `infra`.
fn files() -> Vec<(String, String)> {
    let mut found = Vec::new();
    collect(&super::root().join("infra"), &mut found);
    found
}

#[test]
fn every_image_of_others_has_a_digest() {
    let files = files();
    let found = files
        .iter()
        .flat_map(|(path, text)| images(text).into_iter().map(move |image| (path, image)));
    let found: Vec<_> = found.collect();
    for product in ["debian", "nats", "postgres", "rabbitmq", "rust"] {
        let mut names = found.iter().map(|(_, image)| image.split(':').next());
        assert!(names.any(|name| name == Some(product)), "no {product}");
    }
    let wrong: Vec<_> = found
        .into_iter()
        .filter(|(_, image)| !is_pinned(image))
        .collect();
    assert!(
        wrong.is_empty(),
        "no name:tag@sha256:…, which CONTRIBUTING.md explains: {wrong:?}"
    );
}

#[test]
fn one_tag_has_the_same_digest_in_all_files() {
    let files = files();
    let mut digests = BTreeMap::new();
    for image in files.iter().flat_map(|(_, text)| images(text)) {
        let Some((tag, digest)) = image.split_once('@') else {
            continue;
        };
        let known = digests
            .entry(tag.to_owned())
            .or_insert_with(|| digest.to_owned());
        assert_eq!(known, digest, "{tag} has two digests");
    }
}

#[test]
fn a_variable_has_the_same_digest_in_all_files() {
    let files = files();
    let mut known = BTreeMap::new();
    for (name, digest) in files.iter().flat_map(|(_, text)| digests(text)) {
        assert!(is_pinned(&format!("a:1{digest}")), "{name} {digest}");
        assert_eq!(*known.entry(name).or_insert(digest), digest, "{name}");
    }
    assert_eq!(known.len(), 5, "{known:?}");
}

#[test]
fn the_label_of_an_image_has_the_version_of_the_workspace() {
    let dockerfile = include_str!("../../../infra/docker/Dockerfile");
    let label = concat!(
        "org.opencontainers.image.version=\"",
        env!("CARGO_PKG_VERSION"),
        "\""
    );
    assert_eq!(dockerfile.matches(label).count(), 2, "{label}");
}

#[test]
fn images_are_found_in_dockerfiles_and_in_compose_files() {
    let dockerfile = "FROM --platform=linux/amd64 rust:1 AS build\nfrom debian:12\nFROM build\nFROM scratch\n\
                      COPY --from=build /a /b\nCOPY --from=busybox:1 /a /b\nCOPY a b\n";
    assert_eq!(images(dockerfile), ["rust:1", "debian:12", "busybox:1"]);
    let compose = "services:\n  a:\n    image: cueline:0.1.0\n  b:\n    image: \"nats:2\"\n";
    assert_eq!(images(compose), ["nats:2"]);
}

#[test]
fn a_variable_stands_for_the_digest_that_it_has_by_default() {
    let dockerfile = "ARG A_DIGEST=@sha256:12\nFROM rust:1${A_DIGEST}\nFROM nats:2${B_DIGEST}\n";
    assert_eq!(
        images(dockerfile),
        ["rust:1@sha256:12", "nats:2${B_DIGEST}"]
    );
    let compose = "services:\n  a:\n    image: nats:2${C_DIGEST-@sha256:34}\n";
    assert_eq!(images(compose), ["nats:2@sha256:34"]);
}

#[test]
fn a_tag_without_a_whole_digest_is_not_enough() {
    let digest = "0123456789abcdef".repeat(4);
    assert!(is_pinned(&format!("postgres:16@sha256:{digest}")));
    assert!(is_pinned(&format!("host:5000/team/app:1@sha256:{digest}")));
    assert!(!is_pinned("postgres:16"));
    assert!(!is_pinned(&format!("postgres@sha256:{digest}")));
    assert!(!is_pinned(&format!("host:5000/app@sha256:{digest}")));
    assert!(!is_pinned(&format!("postgres:16@sha256:{}", &digest[1..])));
    assert!(!is_pinned(&format!(
        "postgres:16@sha256:{}",
        digest.to_uppercase()
    )));
}
