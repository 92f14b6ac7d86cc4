//! The commands of the pages on Quartz and systemd print what the pages say.
//!
//! [`cueline_tests::walk_through`] has the rules of the pages. The tables of expressions are checked in
//! `shared/model/tests/quartz_page.rs` and `shared/model/src/import/systemd/tests.rs`.

use anyhow::{Result, ensure};
use cueline_test_servers::postgres::Postgres;
use cueline_tests::walk_through::{Page, Ports};

use crate::page_shell;
use crate::quartz_import::{ROWS, TABLES};

const QUARTZ: &str = include_str!("../../../docs/from-quartz.md");
const SYSTEMD: &str = include_str!("../../../docs/from-systemd.md");
/// The page's port of the database with Quartz's tables.
const DATABASE: u16 = 5432;

#[test]
fn each_command_of_the_page_on_quartz_prints_what_the_page_says() -> Result<()> {
    let page = Page::parse(QUARTZ)?;
    ensure!(page.ports == [DATABASE], "{:?}", page.ports);
    let server = Postgres::shared()?;
    server.sql("postgres", "CREATE DATABASE quartz")?;
    server.sql("quartz", TABLES)?;
    server.sql("quartz", ROWS)?;
    let may_read =
        "CREATE ROLE quartz LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO quartz";
    server.sql("quartz", may_read)?;
    let mut ports = Ports::default();
    ports.set(DATABASE, server.port());
    page_shell::check("from-quartz.md", &page, ports, &[])
}

#[test]
fn each_command_of_the_page_on_systemd_prints_what_the_page_says() -> Result<()> {
    let page = Page::parse(SYSTEMD)?;
    page_shell::check("from-systemd.md", &page, Ports::default(), &[])
}
