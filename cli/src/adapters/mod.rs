//! The concrete stores and brokers, by their addresses. Nothing outside of this module names one.
//!
//! Each lives behind a cargo feature of its name. An address of one that this program was built without says so, and what there is.

mod broker;
#[cfg(feature = "embedded")]
mod embedded;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(any(feature = "sqlite", feature = "embedded"))]
mod private_file;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;

use std::pin::Pin;

use crate::redacted::Redacted;
use crate::suggest::did_you_mean;

pub(crate) use broker::{BrokerSettings, BrokerUrl, OpenBroker, Who};
pub(crate) use store::{OpenStore, Schema, StoreSettings, StoreUrl};

type Closing = Pin<Box<dyn Future<Output = ()> + Send>>;
/// Ends an adapter: what it holds is written and let go.
type Close = Box<dyn Fn() -> Closing + Send + Sync>;

/// Why a store or a broker cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Unusable {
    /// What happened, without secrets.
    pub(crate) message: String,
    /// Trying again may help.
    pub(crate) may_pass: bool,
}

/// A product, whether it is built in or not.
struct Product<P> {
    kind: P,
    /// What its addresses start with, before the `:`.
    schemes: &'static [&'static str],
    /// Its cargo feature.
    feature: &'static str,
    built_in: bool,
    /// What its addresses look like.
    form: &'static str,
}

/// The product that an address is for.
fn product_of<P: Copy>(
    what: &str,
    products: &[Product<P>],
    address: &Redacted,
) -> Result<P, String> {
    let built_in = || products.iter().filter(|product| product.built_in);
    let forms = || built_in().map(|p| p.form).collect::<Vec<_>>().join(", ");
    let Some((scheme, _)) = address.expose().split_once(':') else {
        return Err(format!(
            "the address of a {what} starts with what it is; expected is {}",
            forms()
        ));
    };
    let found = products.iter().find(|p| p.schemes.contains(&scheme));
    match found {
        Some(product) if product.built_in => Ok(product.kind),
        Some(product) => {
            let there: Vec<&str> = built_in().map(|p| p.feature).collect();
            Err(format!(
                "{address} given; this cueline was built without its {} driver (cargo feature {:?}); it has {}",
                product.feature,
                product.feature,
                if there.is_empty() {
                    "none".to_owned()
                } else {
                    there.join(", ")
                }
            ))
        }
        None => {
            let schemes = built_in().flat_map(|p| p.schemes.iter().copied());
            let hint = did_you_mean(scheme, schemes, &format!("expected is {}", forms()));
            Err(format!(
                "{address} given: no {what} is called {scheme:?}{hint}"
            ))
        }
    }
}

/// What the addresses of the built-in products look like.
fn forms<P>(products: &[Product<P>]) -> String {
    let forms: Vec<&str> = products
        .iter()
        .filter(|p| p.built_in)
        .map(|p| p.form)
        .collect();
    forms.join(" or ")
}

/// The path in `scheme:path`; `scheme://path` is understood as well.
fn path_of<'a>(address: &'a str, scheme: &str) -> &'a str {
    let rest = address.strip_prefix(scheme).unwrap_or(address);
    let rest = rest.strip_prefix(':').unwrap_or(rest);
    rest.strip_prefix("//").unwrap_or(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_is_left_out_is_named_with_those_that_are_there() {
        let product = |kind, schemes, feature, built_in| Product {
            kind,
            schemes,
            feature,
            built_in,
            form: "a:PATH",
        };
        let products = [
            product(1, &["a"], "first", true),
            product(2, &["b"], "second", false),
        ];
        let of = |address| product_of("store", &products, &Redacted::new(address));
        assert_eq!(of("a:x"), Ok(1));
        let said = of("b:x").expect_err("it is left out");
        assert!(
            said.contains("\"second\"") && said.ends_with("it has first"),
            "{said}"
        );
        let said = of("c").expect_err("it has no scheme");
        assert!(said.contains("a:PATH"), "{said}");
    }
}
