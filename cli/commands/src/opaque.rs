//! Subcommands whose variants and arguments stay private.

/// Declares a type that is parsed as the enum in it.
macro_rules! opaque {
    ($(#[$about:meta])* pub struct $name:ident($command:ty);) => {
        $(#[$about])*
        #[derive(Debug)]
        pub struct $name($command);

        impl clap::Subcommand for $name {
            fn augment_subcommands(command: clap::Command) -> clap::Command {
                <$command>::augment_subcommands(command)
            }

            fn augment_subcommands_for_update(command: clap::Command) -> clap::Command {
                <$command>::augment_subcommands_for_update(command)
            }

            fn has_subcommand(name: &str) -> bool {
                <$command>::has_subcommand(name)
            }
        }

        impl clap::FromArgMatches for $name {
            fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
                <$command as clap::FromArgMatches>::from_arg_matches(matches).map(Self)
            }

            fn update_from_arg_matches(
                &mut self,
                matches: &clap::ArgMatches,
            ) -> Result<(), clap::Error> {
                clap::FromArgMatches::update_from_arg_matches(&mut self.0, matches)
            }
        }
    };
}

pub(crate) use opaque;
