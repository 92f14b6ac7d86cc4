//! The commands of `docs/walk-through.md` print what the page says, from a standalone server to a cluster with namespaces,
//! enrolled workers and an identity provider.
//!
//! [`cueline_tests::walk_through`] has the rules of the page. The test provides the database and the identity provider; the
//! page starts everything else. All differences are reported together.

use anyhow::{Context as _, Result};
use cueline_test_servers::canaille::Canaille;
use cueline_test_servers::free_port;
use cueline_test_servers::nats::Version;
use cueline_test_servers::postgres::Postgres;
use cueline_tests::walk_through::{Page, Ports};

use crate::page_shell;

const PAGE: &str = include_str!("../../../docs/walk-through.md");
/// The page's ports of the servers that the test provides, and of the scheduler that the provider has to know.
const STORE: u16 = 15_432;
const PROVIDER: u16 = 15_000;
const SCHEDULER: u16 = 7801;

#[test]
fn each_command_of_the_walk_through_prints_what_the_page_says() -> Result<()> {
    let page = Page::parse(PAGE)?;
    if let Err(missing) = Canaille::modules() {
        eprintln!("skipped: {missing:#}");
        return Ok(());
    }
    let mut ports = Ports::default();
    for port in &page.ports {
        ports.set(*port, free_port()?);
    }
    let postgres = Postgres::shared()?;
    postgres.sql("postgres", "CREATE DATABASE cueline")?;
    ports.set(STORE, postgres.port());
    let scheduler = ports.real(SCHEDULER);
    let callback = format!("http://127.0.0.1:{scheduler}/api/v1/login/oidc/callback");
    let provider = Canaille::start(&callback)?;
    let issuer = provider.issuer();
    let port = issuer.rsplit(':').next().context("a port")?;
    ports.set(PROVIDER, port.parse()?);

    let programs = [Version::V2_12.program()?];
    page_shell::check("walk-through.md", &page, ports, &programs)
}
