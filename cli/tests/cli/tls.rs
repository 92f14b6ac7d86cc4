//! Commands against a standalone server with TLS.

use cueline_test_support::Authority;

use crate::command::Home;
use crate::server::{START, Server};

const TLS: [&str; 4] = ["--tls-cert", "server.pem", "--tls-key", "server.key"];

/// Starts a server whose certificate `authority` has issued. `ca.pem` has the authority's own.
fn start(authority: &Authority, further: &[&str]) -> Server {
    let home = Home::new();
    let at = |name: &str| home.path().join(name);
    authority.issue_to("server", &at("server.pem"), &at("server.key"));
    authority.issue_to("client", &at("client.pem"), &at("client.key"));
    home.write("ca.pem", authority.pem());
    home.write("other.pem", Authority::new("other").pem());
    let command = home.command(&[&START[..], &TLS, further].concat());
    Server::start_by(command, home)
}

/// Lists jobs over the network: an address and a token mean that the socket is not used.
fn list(server: &Server, scheme: &str, further: &[&str]) -> crate::command::Ended {
    let url = format!("{scheme}://127.0.0.1:{}", server.port());
    let token = std::fs::read_to_string(server.home.path().join("data/admin.token"));
    let token = token.expect("a token");
    let named = ["job", "list", "--url", &url, "--token", token.trim()];
    server.run(&[&named[..], further].concat())
}

#[test]
fn commands_trust_the_authority_that_they_are_given() {
    let server = start(&Authority::new("one"), &[]);
    let announced = std::fs::read_to_string(server.home.path().join("cueline/server.json"));
    assert!(announced.expect("a file").contains("\"https://127.0.0.1:"));
    list(&server, "https", &["--ca-file", "ca.pem"]).good();

    let ended = list(&server, "https", &["--ca-file", "other.pem"]);
    assert_eq!(ended.status, 1, "{ended:#?}");
    assert!(
        ended.stderr.contains("hint: if a private authority"),
        "{ended:#?}"
    );
    let ended = list(&server, "http", &["--ca-file", "ca.pem"]);
    assert_eq!(ended.status, 1, "{ended:#?}");

    // The socket has no TLS.
    server.run(&["job", "list"]).good();
}

#[test]
fn commands_show_the_certificate_that_the_server_asks_for() {
    let server = start(&Authority::new("one"), &["--tls-client-ca", "ca.pem"]);
    let ca = ["--ca-file", "ca.pem"];
    let ended = list(&server, "https", &ca);
    assert_eq!(ended.status, 1, "{ended:#?}");
    let pair = ["--client-cert", "client.pem", "--client-key", "client.key"];
    list(&server, "https", &[&ca[..], &pair].concat()).good();
    server.run(&["job", "list"]).good();
}

#[test]
fn wrong_files_of_a_command_are_named() {
    let authority = Authority::new("one");
    let server = start(&authority, &[]);
    for (args, words) in [
        (
            &["--ca-file", "none.pem"][..],
            "ca_file: none.pem: failed to read",
        ),
        (
            &["--ca-file", "server.key"],
            "ca_file: server.key: a PEM file",
        ),
        (&["--client-cert", "client.pem"], "client_key: missing"),
        (&["--client-key", "client.key"], "client_cert: missing"),
        (
            &["--client-cert", "client.pem", "--client-key", "ca.pem"],
            "client_cert: client.pem: a PEM file",
        ),
    ] {
        let ended = list(&server, "https", args);
        assert_eq!(ended.status, 2, "{ended:#?}");
        assert!(ended.stderr.contains(words), "{ended:#?}");
    }
}
