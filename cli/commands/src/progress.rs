//! Shows on a terminal what takes long.

use std::io::IsTerminal as _;
use std::time::Duration;

use cueline_interface::Out;
use cueline_runtime::terminal::{Style, harmless};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::task::JoinHandle;

/// What ends earlier is not shown.
const DELAY: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(100);
const BAR: &str = "{msg} {wide_bar} {pos}/{len}";

/// Shows on standard error that the command waits for something, until it is dropped. Shows nothing for the first second,
/// without a terminal, and beside an answer for programs.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    appearing: Option<JoinHandle<()>>,
}

impl Progress {
    /// For something of unknown length.
    pub(crate) fn spinner(out: Out, what: &str) -> Self {
        Self::new(out, what, None, ProgressStyle::default_spinner())
    }

    /// For `all` parts.
    pub(crate) fn bar(out: Out, what: &str, all: usize) -> Self {
        let style = ProgressStyle::with_template(BAR);
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        Self::new(out, what, Some(all as u64), style)
    }

    fn new(out: Out, what: &str, length: Option<u64>, style: ProgressStyle) -> Self {
        let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::hidden());
        bar.set_style(style);
        bar.set_message(harmless(what, Style::Inline).into_owned());
        let is_shown = !out.is_json() && std::io::stderr().is_terminal();
        let appearing = is_shown.then(|| tokio::spawn(appear(bar.clone())));
        Self { bar, appearing }
    }

    /// Shows something else from now on.
    pub(crate) fn change(&self, what: &str) {
        self.bar
            .set_message(harmless(what, Style::Inline).into_owned());
    }

    /// So many parts are done.
    pub(crate) fn reached(&self, done: usize) {
        self.bar.set_position(done as u64);
    }
}

async fn appear(bar: ProgressBar) {
    tokio::time::sleep(DELAY).await;
    // The command may have ended meanwhile.
    if !bar.is_finished() {
        bar.set_draw_target(ProgressDrawTarget::stderr());
        bar.enable_steady_tick(TICK);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(appearing) = self.appearing.take() {
            appearing.abort();
        }
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::{BAR, Progress};
    use cueline_interface::{Out, OutputFormat};
    use indicatif::ProgressStyle;

    #[test]
    fn an_answer_for_programs_has_no_progress_beside_it() {
        assert!(ProgressStyle::with_template(BAR).is_ok());
        // Outside of a runtime, a progress that is to be shown would panic.
        let progress = Progress::bar(Out::to_file(OutputFormat::Json), "x", 3);
        progress.reached(2);
        progress.change("a\x1b[2Jb");
        assert!(progress.bar.is_hidden());
        assert_eq!(progress.bar.message(), "a\\x1b[2Jb");
        assert_eq!(
            (progress.bar.position(), progress.bar.length()),
            (2, Some(3))
        );
    }
}
