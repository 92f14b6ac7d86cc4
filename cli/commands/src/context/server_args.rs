//! Which server a command asks, and the certificates with which client and server prove who they are.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, Args};
use cueline_interface::Failure;
use cueline_model::{NameError, Namespace};
use reqwest::{Certificate, ClientBuilder, Identity};

use super::book::Context;
use super::name::ContextName;

/// The server, and how a command proves who it is.
#[derive(Debug, Clone, Args)]
pub struct ServerArgs {
    /// The server's address.
    #[arg(
        long,
        global = true,
        env = "CUELINE_URL",
        value_name = "URL",
        help = "The server's address; by default that of the context, else this user's standalone server, else http://127.0.0.1:7800"
    )]
    pub(crate) url: Option<String>,
    /// The context whose server is asked; by default the one that `cueline context use` chose
    #[arg(long, global = true, env = "CUELINE_CONTEXT", value_name = "NAME")]
    context: Option<String>,
    /// The admin token or an API token; by default that of the context or of this user's standalone server
    #[arg(
        long,
        global = true,
        env = "CUELINE_TOKEN",
        value_name = "TOKEN",
        hide_env_values = true
    )]
    pub(crate) token: Option<String>,
    /// Whether the token is that of the variable. See [`note_sources`](Self::note_sources).
    #[arg(skip)]
    pub(crate) token_is_from_variable: bool,
    /// The namespace of the jobs, groups and runs that the command is about; by default that of the context, else `default`
    #[arg(long, global = true, env = "CUELINE_NAMESPACE", value_name = "NAME")]
    namespace: Option<String>,
    /// Certificates (PEM) of the authorities that the server's is checked against, instead of the system's
    #[arg(long, global = true, env = "CUELINE_CA_FILE", value_name = "FILE")]
    ca_file: Option<OsString>,
    /// Certificate (PEM) for a server that asks for one; needs --client-key
    #[arg(long, global = true, env = "CUELINE_CLIENT_CERT", value_name = "FILE")]
    client_cert: Option<OsString>,
    /// Private key (PEM) of --client-cert
    #[arg(long, global = true, env = "CUELINE_CLIENT_KEY", value_name = "FILE")]
    client_key: Option<OsString>,
}

impl ServerArgs {
    /// Notes where the token was found. The values alone do not say it.
    pub fn note_sources(&mut self, matches: &ArgMatches) {
        let source = matches.value_source("token");
        self.token_is_from_variable = source == Some(ValueSource::EnvVariable);
    }

    /// The namespace that the user gave by the flag or the variable. An empty variable is ignored.
    pub(crate) fn named_namespace(&self) -> Result<Option<Namespace>, Failure> {
        let given = self.namespace.as_deref().filter(|text| !text.is_empty());
        let parse = |text: &str| {
            let parsed = text.parse::<Namespace>();
            parsed.map_err(|error: NameError| {
                Failure::bad_input(format!("namespace: {text:?}: {error}"))
            })
        };
        given.map(parse).transpose()
    }

    /// The context that the user names. An empty variable is ignored.
    pub(crate) fn named_context(&self) -> Result<Option<ContextName>, Failure> {
        let name = self.context.as_deref().filter(|name| !name.is_empty());
        let parsed = name.map(str::parse::<ContextName>).transpose();
        parsed.map_err(|problem| Failure::bad_input(format!("context: {problem}")))
    }

    /// The same arguments, without the address and the token of the user: the context has both.
    pub(crate) fn only_context(&self, name: &ContextName) -> Self {
        Self {
            url: None,
            token: None,
            context: Some(name.to_string()),
            ..self.clone()
        }
    }

    /// The same arguments, with the certificates of a context where none are given. A certificate and its key belong
    /// together, so the context has both or none of them.
    pub(crate) fn completed_by(&self, context: &Context) -> Self {
        let mut all = self.clone();
        let of = |path: Option<&PathBuf>| path.map(|path| path.as_os_str().to_owned());
        if given(self.ca_file.as_ref()).is_none() {
            all.ca_file = of(context.ca_file.as_ref());
        }
        let has_pair =
            given(self.client_cert.as_ref()).is_some() || given(self.client_key.as_ref()).is_some();
        if !has_pair {
            all.client_cert = of(context.client_cert.as_ref());
            all.client_key = of(context.client_key.as_ref());
        }
        all
    }

    /// The files of certificates, as absolute paths, for a context that is used from any directory.
    pub(crate) fn certificate_files(&self) -> Result<[Option<PathBuf>; 3], Failure> {
        let absolute = |option: &str, path: Option<&OsString>| {
            given(path)
                .map(std::path::absolute)
                .transpose()
                .map_err(|error| Failure::bad_input(format!("{option}: {error}")))
        };
        Ok([
            absolute("ca_file", self.ca_file.as_ref())?,
            absolute("client_cert", self.client_cert.as_ref())?,
            absolute("client_key", self.client_key.as_ref())?,
        ])
    }

    /// Gives a client of an https server its certificates.
    pub(crate) fn with_certificates(
        &self,
        mut builder: ClientBuilder,
    ) -> Result<ClientBuilder, Failure> {
        if let Some(path) = given(self.ca_file.as_ref()) {
            let certificates = Certificate::from_pem_bundle(&read("ca_file", path)?);
            // An empty list would refuse every server, without a reason.
            let certificates = certificates.ok().filter(|list| !list.is_empty());
            let certificates = certificates.ok_or_else(|| {
                refuse("ca_file", path, "a PEM file with certificates is expected")
            })?;
            builder = builder.tls_certs_only(certificates);
        }
        let (cert, key) = (
            given(self.client_cert.as_ref()),
            given(self.client_key.as_ref()),
        );
        let (cert, key) = match (cert, key) {
            (Some(cert), Some(key)) => (cert, key),
            (None, None) => return Ok(builder),
            (Some(_), None) => {
                return Err(missing("client_key", "--client-key FILE", "client_cert"));
            }
            (None, Some(_)) => {
                return Err(missing("client_cert", "--client-cert FILE", "client_key"));
            }
        };
        let mut both = read("client_cert", cert)?;
        // A file need not end with a new line, but each PEM section begins with one.
        both.push(b'\n');
        both.extend(read("client_key", key)?);
        let identity = Identity::from_pem(&both).map_err(|_| {
            let expected =
                "a PEM file with a certificate is expected, and an unencrypted key in client_key";
            refuse("client_cert", cert, expected)
        })?;
        Ok(builder.identity(identity))
    }
}

/// Empty variables are ignored.
fn given(path: Option<&OsString>) -> Option<&Path> {
    let path = path.map(OsString::as_os_str);
    path.filter(|path: &&OsStr| !path.is_empty()).map(Path::new)
}

fn read(option: &str, path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|error| refuse(option, path, &format!("failed to read: {error}")))
}

fn refuse(option: &str, path: &Path, problem: &str) -> Failure {
    Failure::bad_input(format!("{option}: {}: {problem}", path.display()))
}

fn missing(option: &str, flag: &str, given: &str) -> Failure {
    let variable = option.to_uppercase();
    Failure::bad_input(format!(
        "{option}: missing; give {flag} or CUELINE_{variable}, because {given} needs it"
    ))
}
