//! The arguments of `cueline context`.

use clap::{Args, Subcommand};

use super::name::ContextName;

/// `cueline context …`
#[derive(Debug, Subcommand)]
pub(crate) enum ContextCommand {
    /// List all contexts; a star marks the one that commands use
    List,
    /// Let commands use a context from now on
    Use(UseArgs),
    /// Show a context; by default the one that commands use
    Show(OptionalContextArg),
    /// Delete a context with its token; the token stays valid, unless `cueline logout` came before
    Delete(ContextArg),
    /// Give a context another name
    Rename(RenameArgs),
}

/// `cueline context use`
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct UseArgs {
    /// The context's name
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<ContextName>,
    /// Use no context, but this user's standalone server
    #[arg(long)]
    pub(crate) none: bool,
}

/// One context.
#[derive(Debug, Args)]
pub(crate) struct ContextArg {
    /// The context's name
    #[arg(value_name = "NAME")]
    pub(crate) name: ContextName,
}

/// One context, or the present one.
#[derive(Debug, Args)]
pub(crate) struct OptionalContextArg {
    /// The context's name
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<ContextName>,
}

/// `cueline context rename`
#[derive(Debug, Args)]
pub(crate) struct RenameArgs {
    /// The present name
    #[arg(value_name = "NAME")]
    pub(crate) from: ContextName,
    /// The new name
    #[arg(value_name = "NEW_NAME")]
    pub(crate) to: ContextName,
}
