//! TLS: which clients are served, changed files, and clients that do not end their handshake.

use std::fs;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use cueline_http::{ServerLimits, Tls, TlsFile, TlsFiles, TlsReload};
use cueline_runtime::{Duty as _, Next, Stop};
use cueline_test_support::Authority;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::raw::{Raw, request};
use crate::server::DEADLINE;

/// Short, so that the test need not wait. Nothing asserts how soon it passes.
const SHORT: Duration = Duration::from_millis(300);

/// Longer than any test.
const LONG: Duration = Duration::from_hours(1);

const PATIENT: ServerLimits = ServerLimits {
    max_connections: 100,
    min_idle: LONG,
    handshake_timeout: LONG,
    head_timeout: LONG,
    body_timeout: LONG,
    write_timeout: LONG,
};

/// One of the paths.
type Field = fn(&mut TlsFiles) -> &mut PathBuf;

/// A server with `/livez` alone, whose certificate this authority has issued.
struct Server {
    address: SocketAddr,
    files: TlsFiles,
    reload: TlsReload,
    stop: Stop,
    serving: JoinHandle<()>,
    folder: tempfile::TempDir,
}

impl Server {
    async fn start(authority: &Authority) -> Self {
        Self::with(authority, None, PATIENT).await
    }

    async fn with(
        authority: &Authority,
        clients: Option<&Authority>,
        limits: ServerLimits,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let files = TlsFiles {
            certificate: at("server.pem"),
            key: at("server.key"),
            client_ca: clients.map(|authority| {
                fs::write(at("clients.pem"), authority.pem()).expect("written");
                at("clients.pem")
            }),
        };
        authority.issue_to("server", &files.certificate, &files.key);
        let (tls, reload) = Tls::open(files.clone()).expect("usable files");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let router = Router::new().route("/livez", get(async || "ok\n"));
        let stop = Stop::new();
        let serving = cueline_http::serve_tls(listener, tls, router, limits, stop.clone());
        Self {
            address,
            files,
            reload,
            stop,
            serving: tokio::spawn(serving),
            folder,
        }
    }

    /// Replaces certificate and key by new ones of this authority.
    fn replace(&self, authority: &Authority) {
        authority.issue_to("server", &self.files.certificate, &self.files.key);
    }

    /// Whether a new client that trusts this authority gets an answer.
    async fn serves(&self, authority: &Authority) -> bool {
        let answer = async {
            let mut client = Client::of(authority).connect(self.address).await?;
            ask(&mut client).await
        };
        in_time(answer).await.is_ok()
    }
}

/// A client that trusts one authority.
struct Client {
    roots: RootCertStore,
    versions: Vec<&'static SupportedProtocolVersion>,
    /// Its certificate and key.
    identity: Option<(String, String)>,
}

impl Client {
    fn of(authority: &Authority) -> Self {
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(authority.pem().as_bytes()).expect("PEM");
        roots.add(root).expect("a root");
        Self {
            roots,
            versions: vec![&TLS13, &TLS12],
            identity: None,
        }
    }

    async fn connect(self, address: SocketAddr) -> io::Result<TlsStream<TcpStream>> {
        cueline_runtime::tls::install_provider();
        let builder = ClientConfig::builder_with_protocol_versions(&self.versions)
            .with_root_certificates(self.roots);
        let config = match self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let certificate = CertificateDer::from_pem_slice(certificate.as_bytes());
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
                builder
                    .with_client_auth_cert(vec![certificate.expect("PEM")], key)
                    .expect("an identity")
            }
        };
        let stream = TcpStream::connect(address).await?;
        let name = ServerName::from(address.ip());
        let connector = TlsConnector::from(Arc::new(config));
        connector.connect(name, stream).await
    }
}

async fn in_time<T>(what: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(DEADLINE, what).await;
    done.expect("in time")
}

/// Sends a request, and reads its answer. The connection stays open.
async fn ask(client: &mut TlsStream<TcpStream>) -> io::Result<()> {
    let request = request("GET /livez HTTP/1.1", &[], b"");
    client.write_all(&request).await?;
    client.flush().await?;
    let mut received = Vec::new();
    while !received.ends_with(b"\r\n\r\nok\n") {
        if client.read_buf(&mut received).await? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_client_that_trusts_the_authority_is_served_by_both_versions() {
    let authority = Authority::new("one");
    let server = Server::start(&authority).await;
    for version in [&TLS12, &TLS13] {
        let client = Client {
            versions: vec![version],
            ..Client::of(&authority)
        };
        let mut client = in_time(client.connect(server.address))
            .await
            .expect("connects");
        in_time(ask(&mut client)).await.expect("an answer");
        let (_, connection) = client.get_ref();
        assert_eq!(connection.protocol_version(), Some(version.version));
    }
    assert!(!server.serves(&Authority::new("other")).await);
}

#[tokio::test]
async fn a_request_without_tls_gets_no_answer() {
    let authority = Authority::new("one");
    let server = Server::start(&authority).await;
    let mut raw = Raw::to(server.address).await;
    raw.send(&request("GET /livez HTTP/1.1", &[], b"")).await;
    assert!(raw.reply().await.is_none());
    assert!(server.serves(&authority).await);
}

#[tokio::test]
async fn a_handshake_that_does_not_end_is_given_up() {
    let authority = Authority::new("one");
    let limits = ServerLimits {
        handshake_timeout: SHORT,
        ..PATIENT
    };
    let server = Server::with(&authority, None, limits).await;
    // The second one sends the begin of a record.
    for begin in [&b""[..], b"\x16\x03\x01"] {
        let mut raw = Raw::to(server.address).await;
        raw.send(begin).await;
        assert!(raw.reply().await.is_none());
    }
}

#[tokio::test]
async fn handshakes_that_do_not_end_give_way_to_a_client() {
    let authority = Authority::new("one");
    let limits = ServerLimits {
        max_connections: 4,
        min_idle: SHORT,
        ..PATIENT
    };
    let server = Server::with(&authority, None, limits).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(Raw::to(server.address).await);
    }
    assert!(server.serves(&authority).await);
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_handshake() {
    let authority = Authority::new("one");
    let server = Server::start(&authority).await;
    let mut raw = Raw::to(server.address).await;
    // It was accepted after the silent one, so that one is in its handshake.
    assert!(server.serves(&authority).await);
    server.stop.ask_soft();
    assert!(raw.reply().await.is_none(), "it is still open");
    in_time(server.serving).await.expect("no panic");
}

#[tokio::test]
async fn new_connections_get_a_changed_certificate_and_others_stay_open() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let mut server = Server::start(&old).await;
    let connected = Client::of(&old).connect(server.address);
    let mut before = in_time(connected).await.expect("connects");
    in_time(ask(&mut before)).await.expect("an answer");

    server.replace(&new);
    assert!(server.serves(&old).await, "it has not looked yet");
    let next = server.reload.activate().await;
    assert_eq!(next, Ok(Next::After(Duration::from_secs(30))));
    assert!(server.serves(&new).await);
    assert!(!server.serves(&old).await);
    in_time(ask(&mut before)).await.expect("an answer");
}

#[tokio::test]
async fn files_that_cannot_be_used_keep_the_certificate_before_them() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let mut server = Server::start(&old).await;
    let (certificate, key) = new.issue("server");
    // The key is still the old one.
    let pem = certificate.as_str();
    let no_end = &pem[..pem.len() / 2];
    for broken in [Some(pem), Some(no_end), Some("no PEM"), Some(""), None] {
        match broken {
            Some(text) => fs::write(&server.files.certificate, text).expect("written"),
            None => fs::remove_file(&server.files.certificate).expect("removed"),
        }
        server.reload.check().await;
        assert!(server.serves(&old).await, "{broken:?}");
    }
    fs::write(&server.files.certificate, certificate).expect("written");
    fs::write(&server.files.key, key).expect("written");
    server.reload.check().await;
    assert!(server.serves(&new).await);
}

#[tokio::test]
async fn an_error_names_the_file() {
    let (authority, other) = (Authority::new("one"), Authority::new("other"));
    let server = Server::with(&authority, Some(&authority), PATIENT).await;
    let good = server.files.clone();
    let at = |name: &str| server.folder.path().join(name);
    fs::write(at("bad.pem"), "no PEM").expect("written");
    other.issue_to("other", &at("other.pem"), &at("other.key"));
    let with = |field: Field, name: &str| {
        let mut files = good.clone();
        *field(&mut files) = at(name);
        files
    };
    let certificate: Field = |files| &mut files.certificate;
    let key: Field = |files| &mut files.key;
    let client_ca: Field = |files| files.client_ca.get_or_insert_default();
    for (field, name, file, words) in [
        (
            certificate,
            "none.pem",
            TlsFile::Certificate,
            "failed to read",
        ),
        (
            certificate,
            "bad.pem",
            TlsFile::Certificate,
            "holds no certificate",
        ),
        (certificate, "", TlsFile::Certificate, "is not a file"),
        (key, "bad.pem", TlsFile::Key, "holds no private key"),
        (key, "server.pem", TlsFile::Key, "holds no private key"),
        (
            key,
            "other.key",
            TlsFile::Key,
            "is not the key of the certificate",
        ),
        (
            client_ca,
            "other.key",
            TlsFile::ClientCa,
            "holds no certificate",
        ),
    ] {
        let error = Tls::open(with(field, name)).expect_err(name);
        assert_eq!((error.file(), error.path()), (file, at(name).as_path()));
        let text = error.to_string();
        assert!(text.contains(words), "{name}: {text}");
        assert!(text.contains(&at(name).display().to_string()), "{text}");
    }
}

#[tokio::test]
async fn without_a_certificate_of_their_authority_clients_are_refused() {
    let (authority, clients) = (Authority::new("servers"), Authority::new("clients"));
    let server = Server::with(&authority, Some(&clients), PATIENT).await;
    for (identity, is_served) in [
        (None, false),
        (Some(Authority::new("other").issue("client")), false),
        (Some(clients.issue("client")), true),
    ] {
        let client = Client {
            identity,
            ..Client::of(&authority)
        };
        // With TLS 1.3, the client learns of a refusal only after its handshake.
        let answer = async {
            let mut client = client.connect(server.address).await?;
            ask(&mut client).await
        };
        assert_eq!(in_time(answer).await.is_ok(), is_served);
    }
}
