//! Definitions of commands that are made when the command is given.
//!
//! Those of all commands together take milliseconds and a megabyte, at each start of a process. It needs those of one.

use std::cell::Cell;

use clap::builder::{Resettable, StyledStr};
use clap::error::Error;
use clap::{ArgMatches, Args, Command, FromArgMatches, Id, Subcommand};

/// Adds arguments or subcommands to a command.
type Definition = fn(Command) -> Command;

thread_local! {
    static AT_ONCE: Cell<bool> = const { Cell::new(false) };
}

/// Defines everything at once, for a text about all commands: completions of `help` have only what is defined.
pub fn whole(define: fn() -> Command) -> Command {
    AT_ONCE.set(true);
    let command = define();
    AT_ONCE.set(false);
    command
}

/// The arguments or subcommands of a command, defined when it is given or described.
#[derive(Debug)]
pub struct Deferred<T>(pub T);

impl<T: Args> Args for Deferred<T> {
    fn group_id() -> Option<Id> {
        T::group_id()
    }

    fn augment_args(command: Command) -> Command {
        define(command, T::augment_args, |command| {
            described_alike(command, T::augment_args)
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        define(command, T::augment_args_for_update, |command| {
            described_alike(command, T::augment_args_for_update)
        })
    }
}

impl<T: Subcommand> Subcommand for Deferred<T> {
    fn augment_subcommands(command: Command) -> Command {
        define(command, T::augment_subcommands, |command| {
            described_alike(command, T::augment_subcommands)
        })
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        define(command, T::augment_subcommands_for_update, |command| {
            described_alike(command, T::augment_subcommands_for_update)
        })
    }

    fn has_subcommand(name: &str) -> bool {
        T::has_subcommand(name)
    }
}

impl<T: FromArgMatches> FromArgMatches for Deferred<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        T::from_arg_matches(matches).map(Self)
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, Error> {
        T::from_arg_matches_mut(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(matches)
    }

    fn update_from_arg_matches_mut(&mut self, matches: &mut ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches_mut(matches)
    }
}

fn define(command: Command, now: Definition, later: Definition) -> Command {
    if AT_ONCE.get() {
        now(command)
    } else {
        command.defer(later)
    }
}

/// Without the delay, the description of the command comes after that of its arguments, and replaces it.
fn described_alike(command: Command, define: Definition) -> Command {
    let about = command.get_about().cloned();
    let long_about = command.get_long_about().cloned();
    let command = define(command).about(or_none(about));
    command.long_about(or_none(long_about))
}

fn or_none(text: Option<StyledStr>) -> Resettable<StyledStr> {
    text.map_or(Resettable::Reset, Resettable::Value)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser};

    use super::*;

    /// The program.
    #[derive(Debug, Parser)]
    enum Program {
        /// Do it
        Act(Deferred<ActArgs>),
    }

    /// What to do.
    ///
    /// Once.
    #[derive(Debug, Args)]
    struct ActArgs {
        #[arg(long)]
        what: String,
    }

    fn act(program: &Command) -> &Command {
        program.find_subcommand("act").expect("a command")
    }

    fn options(command: &Command) -> usize {
        let is_own = |arg: &&clap::Arg| arg.get_id() == "what";
        command.get_arguments().filter(is_own).count()
    }

    #[test]
    fn a_command_is_defined_when_it_is_given() {
        let mut program = Program::command();
        assert_eq!(options(act(&program)), 0);
        let matches = program.try_get_matches_from_mut(["program", "act", "--what", "this"]);
        assert_eq!(options(act(&program)), 1);
        let Program::Act(Deferred(args)) =
            Program::from_arg_matches(&matches.expect("valid")).expect("valid");
        assert_eq!(args.what, "this");

        assert_eq!(options(act(&whole(Program::command))), 1);
        assert_eq!(options(act(&Program::command())), 0);
    }

    #[test]
    fn a_command_keeps_its_description() {
        let mut program = Program::command();
        program.build();
        let about = |program: &Command| act(program).get_about().map(ToString::to_string);
        assert_eq!(about(&program).as_deref(), Some("Do it"));
        assert_eq!(about(&Program::command()).as_deref(), Some("Do it"));
        assert!(act(&program).get_long_about().is_none());
    }
}
