//! Finds the product of an address, and checks the form of the address.

use cueline_interface::suggest::did_you_mean;

use crate::redacted::Redacted;

/// A product, whether it is built in or not.
pub(super) struct Product<K> {
    pub(super) kind: K,
    /// Whether this program has its driver.
    pub(super) built_in: bool,
    /// The schemes of its addresses, without the `:`.
    pub(super) schemes: &'static [&'static str],
    /// Its cargo feature.
    pub(super) feature: &'static str,
    /// The form of its addresses, for error messages.
    pub(super) form: &'static str,
}

/// The product that `address` is for. `what` is `store` or `broker`.
pub(super) fn product_of<K: Copy>(
    what: &str,
    products: &[Product<K>],
    address: &Redacted,
) -> Result<K, String> {
    let Some((scheme, _)) = address.expose().split_once(':') else {
        let forms = forms(products, ", ");
        return Err(format!(
            "the address of a {what} starts with its product; {forms} is expected"
        ));
    };
    let found = products.iter().find(|p| p.schemes.contains(&scheme));
    match found {
        Some(product) if product.built_in => Ok(product.kind),
        Some(Product { feature, .. }) => {
            let there: Vec<&str> = built_in(products).map(|p| p.feature).collect();
            let there = if there.is_empty() {
                "none".to_owned()
            } else {
                there.join(", ")
            };
            Err(format!(
                "{address} given; this cueline was built without its {feature} driver (cargo feature {feature:?}); it has {there}"
            ))
        }
        None => {
            let schemes = built_in(products).flat_map(|p| p.schemes.iter().copied());
            let expected = format!("{} is expected", forms(products, ", "));
            let hint = did_you_mean(scheme, schemes, &expected);
            Err(format!(
                "{address} given: no {what} is called {scheme:?}{hint}"
            ))
        }
    }
}

fn built_in<K>(products: &[Product<K>]) -> impl Iterator<Item = &Product<K>> {
    products.iter().filter(|product| product.built_in)
}

/// The forms of the addresses of the built-in products.
pub(super) fn forms<K>(products: &[Product<K>], separator: &str) -> String {
    let forms: Vec<&str> = built_in(products).map(|product| product.form).collect();
    forms.join(separator)
}

/// The path in `scheme:path` or `scheme://path`.
pub(super) fn path_of(address: &Redacted) -> &str {
    let address = address.expose();
    let path = address.split_once(':').map_or(address, |(_, path)| path);
    path.strip_prefix("//").unwrap_or(path)
}

/// Refuses an address that names no server.
pub(super) fn check_server(form: &str, address: &Redacted) -> Result<(), String> {
    match reqwest::Url::parse(address.expose()) {
        Ok(url) if url.has_host() || url.query().is_some_and(|q| q.contains("host=")) => Ok(()),
        Ok(_) => Err(format!(
            "{address} given; it names no host; {form} is expected"
        )),
        Err(error) => Err(format!(
            "{address} given: {error}; {form} is expected, with special characters in the password written as %XX"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_its_driver_names_the_drivers_that_are_built_in() {
        let product = |kind, built_in, schemes, feature| Product {
            kind,
            built_in,
            schemes,
            feature,
            form: "a:PATH",
        };
        let products = [
            product(1, true, &["a"], "first"),
            product(2, false, &["b"], "second"),
        ];
        let of = |address| product_of("store", &products, &Redacted::new(address));
        assert_eq!(of("a:x"), Ok(1));
        let error = of("b:x").expect_err("it is not built in");
        assert!(
            error.contains("\"second\"") && error.ends_with("it has first"),
            "{error}"
        );
        let error = of("c").expect_err("it has no scheme");
        assert!(error.contains("a:PATH"), "{error}");
    }
}
