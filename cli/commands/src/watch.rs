//! `--watch`: asks and prints again and again, until Ctrl-C.

use std::time::Duration;

use clap::Args;
use cueline_interface::{Failure, Out, Paint, say};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

/// Whether an answer is shown again and again.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct WatchArgs {
    /// Show it again every SECONDS, 2 by default, until Ctrl-C
    #[arg(
        long = "watch",
        value_name = "SECONDS",
        num_args = 0..=1,
        default_missing_value = "2",
        value_parser = clap::value_parser!(u64).range(1..=86_400)
    )]
    watch: Option<u64>,
}

/// Shows an answer once, or again and again.
///
/// A failed request is shown and repeated. Only a request that the server calls malformed ends the command, because no
/// repetition mends it.
pub(crate) async fn show(
    out: Out,
    args: WatchArgs,
    fetch: impl AsyncFn() -> Result<Value, Failure>,
    print: impl Fn(Value) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let Some(seconds) = args.watch else {
        return print(fetch().await?);
    };
    let mut interrupt = signal(SignalKind::interrupt())
        .map_err(|error| Failure::failed(format!("failed to listen for signals: {error}")))?;
    let mut screen = Screen::new(out, seconds);
    loop {
        let answer = tokio::select! {
            answer = fetch() => answer,
            _ = interrupt.recv() => return Ok(()),
        };
        screen.show(answer, &print)?;
        // Counted from the answer, so that a slow server is not asked more often than a fast one.
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(seconds)) => {}
            _ = interrupt.recv() => return Ok(()),
        }
    }
}

/// What was shown so far.
struct Screen {
    out: Out,
    seconds: u64,
    /// The last good answer. It stays on the terminal when a request fails.
    last: Option<Value>,
    is_first: bool,
}

impl Screen {
    fn new(out: Out, seconds: u64) -> Self {
        Self {
            out,
            seconds,
            last: None,
            is_first: true,
        }
    }

    fn show(
        &mut self,
        answer: Result<Value, Failure>,
        print: &impl Fn(Value) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let failure = match answer {
            Ok(answer) => {
                self.last = Some(answer);
                None
            }
            Err(failure @ (Failure::BadInput { .. } | Failure::PipeClosed)) => return Err(failure),
            Err(failure) => Some(failure.message()),
        };
        if self.out.is_terminal() {
            self.redraw(failure.as_deref(), print)
        } else {
            self.append(failure.as_deref(), print)
        }
    }

    fn redraw(
        &self,
        failure: Option<&str>,
        print: &impl Fn(Value) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.out.clear_screen()?;
        let heading = format!("every {} s; Ctrl-C ends", self.seconds);
        self.out.line(&self.out.paint(&heading, Paint::Dim))?;
        if let Some(answer) = &self.last {
            print(answer.clone())?;
        }
        match failure {
            Some(failure) => {
                let text = format!("error: {failure}; trying again");
                self.out.line(&self.out.paint(&text, Paint::Bad))
            }
            None => Ok(()),
        }
    }

    fn append(
        &mut self,
        failure: Option<&str>,
        print: &impl Fn(Value) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if let Some(failure) = failure {
            say(&format!("error: {failure}; trying again"));
            return Ok(());
        }
        if !std::mem::replace(&mut self.is_first, false) {
            // An empty line separates the answers. JSON needs none.
            self.out.line("")?;
        }
        // Taken, because only a terminal needs the answer again.
        self.last.take().map_or(Ok(()), print)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use serde_json::{Value, json};

    use super::{Screen, WatchArgs, show};
    use cueline_interface::Failure;
    use cueline_interface::{Out, OutputFormat};

    fn out() -> Out {
        Out::to_file(OutputFormat::Table)
    }

    #[tokio::test]
    async fn without_the_flag_an_answer_is_shown_once_and_a_failure_ends_the_command() {
        let shown = RefCell::new(0);
        let print = |_: Value| -> Result<(), Failure> {
            *shown.borrow_mut() += 1;
            Ok(())
        };
        let once = WatchArgs::default();
        let good = show(out(), once, async || Ok(json!(1)), print).await;
        assert_eq!((good, *shown.borrow()), (Ok(()), 1));
        let bad = show(out(), once, async || Err(Failure::failed("x")), print).await;
        assert_eq!((bad, *shown.borrow()), (Err(Failure::failed("x")), 1));
    }

    #[test]
    fn a_failed_request_is_repeated_and_a_malformed_one_is_not() {
        let shown = RefCell::new(Vec::new());
        let print = |value: Value| -> Result<(), Failure> {
            shown.borrow_mut().push(value);
            Ok(())
        };
        let mut screen = Screen::new(out(), 1);
        assert_eq!(screen.show(Ok(json!(1)), &print), Ok(()));
        assert_eq!(screen.show(Err(Failure::failed("away")), &print), Ok(()));
        assert_eq!(screen.show(Ok(json!(2)), &print), Ok(()));
        assert_eq!(*shown.borrow(), [json!(1), json!(2)]);
        let malformed = Failure::bad_input("limit");
        assert_eq!(screen.show(Err(malformed.clone()), &print), Err(malformed));
    }
}
