//! The settings of all roles, derived from their structs.

use clap::{Arg, ArgAction, Command};

use super::roles::{Role, SchedulerConfig, StandaloneConfig, WorkerConfig};

/// A setting is a clap argument. Its id is the key. It has the flag, variable, default, meaning and parser.
pub(super) type Definition = Arg;

/// A role's name and settings.
pub(super) type RoleSettings = (&'static str, fn() -> Vec<Definition>);

pub(super) const ROLES: [RoleSettings; 3] = [
    (StandaloneConfig::NAME, definitions::<StandaloneConfig>),
    (SchedulerConfig::NAME, definitions::<SchedulerConfig>),
    (WorkerConfig::NAME, definitions::<WorkerConfig>),
];

/// The settings of one role, in the order of its struct.
pub(super) fn definitions<T: Role>() -> Vec<Definition> {
    let command = T::augment_args(Command::new(T::NAME)).mut_args(|arg| {
        let key = arg.get_id().to_string();
        let arg = match T::COMPUTED.iter().find(|(computed, _)| *computed == key) {
            Some((_, words)) => {
                let meaning = arg.get_help().map(ToString::to_string).unwrap_or_default();
                arg.help(format!("{meaning} [default: {words}]"))
            }
            None => arg,
        };
        arg.long(key.replace('_', "-"))
            .env(format!("CUELINE_{}", key.to_uppercase()))
            .hide_env_values(true)
    });
    command.get_arguments().cloned().collect()
}

/// The settings of all roles. A setting of several roles occurs several times.
pub(super) fn all() -> impl Iterator<Item = (&'static str, Definition)> {
    let of =
        |(role, definitions): RoleSettings| definitions().into_iter().map(move |arg| (role, arg));
    ROLES.into_iter().flat_map(of)
}

/// Whether a setting may be a flag. Secrets may not, because other users of the machine can see command lines.
pub(super) fn is_flag(definition: &Definition) -> bool {
    definition.get_id() != "token"
}

pub(super) fn variable(definition: &Definition) -> &str {
    let name = definition.get_env().and_then(|name| name.to_str());
    name.unwrap_or_default()
}

pub(super) fn value_name(definition: &Definition) -> &str {
    let names = definition.get_value_names().unwrap_or_default();
    names.first().map_or("", |name| name.as_str())
}

/// The format of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Text,
    Number,
    /// The flag has no value: its name alone means true.
    Switch,
    /// Separated by commas in flags and variables.
    List,
}

impl Shape {
    pub(super) fn of(definition: &Definition) -> Self {
        match (value_name(definition), definition.get_action()) {
            ("BOOL", _) => Self::Switch,
            ("N", _) => Self::Number,
            (_, ArgAction::Append) => Self::List,
            _ => Self::Text,
        }
    }

    pub(super) fn expected(self) -> &'static str {
        match self {
            Self::Text => "a text in quotes",
            Self::Number => "a whole number",
            Self::Switch => "true or false",
            Self::List => "a list of texts such as [\"a\", \"b\"]",
        }
    }
}

/// Whether `name` is the command of a role.
pub(crate) fn is_role(name: &str) -> bool {
    ROLES.iter().any(|(role, _)| *role == name)
}
