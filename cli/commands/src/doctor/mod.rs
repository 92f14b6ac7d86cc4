//! `cueline doctor`: checks server, clock, store, executors, jobs and data, with a hint for each problem.

mod check;
mod local;
mod server;

use std::path::Path;

use cueline_interface::{Failure, Out, Paint};
use serde_json::json;

use crate::args::DoctorArgs;
use crate::client::Api;
use crate::context::server_args::ServerArgs;
use check::{Check, Level};

/// Checks, prints, and fails if something is bad.
pub(crate) async fn run(named: &ServerArgs, out: Out, args: &DoctorArgs) -> Result<(), Failure> {
    let mut checks = Vec::new();
    let found = local::announced_server(&mut checks);
    match Api::new(named) {
        Ok(api) => server::check(&api, &mut checks).await,
        Err(Failure::BadInput { messages, summary }) => {
            return Err(Failure::BadInput { messages, summary });
        }
        Err(failure) => checks.push(Check::failed("token", failure)),
    }
    let data = args.data.clone().or_else(|| {
        let token_file = found.map(|found| found.token_file)?;
        token_file.parent().map(Path::to_path_buf)
    });
    if let Some(data) = data {
        local::check_data_dir(data, &mut checks).await;
    }
    print(out, &checks)?;
    if checks.iter().any(|check| check.level == Level::Bad) {
        return Err(Failure::Silent);
    }
    Ok(())
}

fn print(out: Out, checks: &[Check]) -> Result<(), Failure> {
    if out.is_json() {
        return out.json(&json!({ "checks": checks }));
    }
    for check in checks {
        let (word, paint) = match check.level {
            Level::Ok => ("ok  ", Paint::Good),
            Level::Warn => ("warn", Paint::Warn),
            Level::Bad => ("bad ", Paint::Bad),
        };
        out.line(&format!(
            "{} {:<9} {}",
            out.paint(word, paint),
            check.what,
            check.text
        ))?;
        if let Some(hint) = &check.hint {
            out.line(&format!("               → {hint}"))?;
        }
    }
    Ok(())
}
