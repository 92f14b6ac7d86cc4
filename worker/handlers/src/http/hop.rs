//! One request of an attempt, and the request that a redirect makes of it. Pure.

use cueline_worker::Failure;
use reqwest::header::{
    CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_LOCATION, CONTENT_TYPE, HeaderMap,
    HeaderName, HeaderValue, TRANSFER_ENCODING,
};
use reqwest::{Method, Request, StatusCode, Url};

/// Headers that describe a body. They go where it goes.
static BODY_HEADERS: [HeaderName; 6] = [
    CONTENT_ENCODING,
    CONTENT_LANGUAGE,
    CONTENT_LENGTH,
    CONTENT_LOCATION,
    CONTENT_TYPE,
    TRANSFER_ENCODING,
];

/// One request of an attempt. It has no `Debug`, which would show credentials.
pub(super) struct Hop {
    pub(super) method: Method,
    pub(super) url: Url,
    /// The headers of the job. They may be credentials.
    pub(super) headers: HeaderMap,
    pub(super) body: Option<String>,
}

impl Hop {
    /// The request. `own` are Cueline's headers, which replace the job's.
    pub(super) fn request(&self, own: &HeaderMap) -> Request {
        let mut request = Request::new(self.method.clone(), self.url.clone());
        let mut headers = self.headers.clone();
        for (name, value) in own {
            headers.insert(name, value.clone());
        }
        *request.headers_mut() = headers;
        *request.body_mut() = self.body.clone().map(Into::into);
        request
    }

    /// The request that follows a redirect (RFC 9110, 15.4). Messages do not contain the new URL, because it may carry
    /// a secret.
    ///
    /// The job's headers and body stay with the host, port and scheme that the job names.
    pub(super) fn redirected(
        mut self,
        status: StatusCode,
        location: &HeaderValue,
    ) -> Result<Self, Failure> {
        let by = target(&self.url);
        let refused = |why: &str| Failure::new(format!("the redirect by {by} is refused: {why}"));
        let url = location.to_str().ok().and_then(|l| self.url.join(l).ok());
        let url = url.ok_or_else(|| refused("its location is not a URL"))?;
        if !is_http(&url) {
            return Err(refused("it leads to neither http nor https"));
        }
        if self.url.scheme() == "https" && url.scheme() == "http" {
            let to = target(&url);
            return Err(refused(&format!("it leads from https to http ({to})")));
        }
        if drops_body(status, &self.method) {
            self.method = Method::GET;
            self.body = None;
            for name in &BODY_HEADERS {
                self.headers.remove(name);
            }
        }
        if url.origin() != self.url.origin() {
            if self.body.is_some() {
                let to = target(&url);
                return Err(refused(&format!(
                    "the body must not go to another host, port or scheme ({to})"
                )));
            }
            self.headers.clear();
        }
        self.url = url;
        Ok(self)
    }
}

/// Whether the status asks for another request.
pub(super) fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Whether the next request is a GET without a body, as every client does it.
fn drops_body(status: StatusCode, method: &Method) -> bool {
    match status.as_u16() {
        301 | 302 => method == Method::POST,
        303 => method != Method::HEAD,
        _ => false,
    }
}

pub(super) fn is_http(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
}

/// Host and port, for messages.
pub(super) fn target(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port_or_known_default() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(method: Method, url: &str, body: Option<&str>) -> Hop {
        let headers = [
            ("authorization", "hush"),
            ("x-api-key", "hush"),
            ("content-type", "text/plain"),
        ];
        let headers = headers
            .into_iter()
            .map(|(name, value)| {
                let name = HeaderName::from_static(name);
                (name, HeaderValue::from_static(value))
            })
            .collect();
        Hop {
            method,
            url: url.parse().expect("a URL"),
            headers,
            body: body.map(str::to_owned),
        }
    }

    fn redirect(hop: Hop, status: u16, location: &'static str) -> Result<Hop, String> {
        let status = StatusCode::from_u16(status).expect("a status");
        hop.redirected(status, &HeaderValue::from_static(location))
            .map_err(|failure| failure.message)
    }

    #[test]
    fn headers_go_to_the_same_host_port_and_scheme_only() {
        let to = |location| {
            let hop = hop(Method::GET, "https://a.example/start", None);
            redirect(hop, 302, location)
                .expect("followed")
                .headers
                .len()
        };
        for location in [
            "/next",
            "next?x=1",
            "https://a.example:443/",
            "//A.example/",
        ] {
            assert_eq!(to(location), 3, "{location}");
        }
        for location in [
            "https://b.example/",
            "https://a.example:8443/",
            "https://a.example.evil.example/",
            "//b.example/",
        ] {
            assert_eq!(to(location), 0, "{location}");
        }
        let plain = hop(Method::GET, "http://a.example/", None);
        let secure = redirect(plain, 301, "https://a.example/").expect("followed");
        assert!(secure.headers.is_empty());
    }

    #[test]
    fn headers_that_were_left_out_do_not_come_back() {
        let there = redirect(hop(Method::GET, "https://a/", None), 302, "https://b/");
        let back = redirect(there.expect("followed"), 302, "https://a/").expect("followed");
        assert!(back.headers.is_empty());
    }

    #[test]
    fn some_redirects_are_refused() {
        for (status, url, location, reason) in [
            (302, "https://a/", "http://a/", "from https to http (a:80)"),
            (302, "https://a/", "ftp://a/", "neither http nor https"),
            (
                302,
                "http://a/",
                "file:///etc/passwd",
                "neither http nor https",
            ),
            (302, "http://a/", "http://[", "not a URL"),
            (
                307,
                "http://a/",
                "http://b/?token=hush",
                "the body must not go to another host",
            ),
            (
                308,
                "http://a/",
                "http://a:81/",
                "the body must not go to another host",
            ),
        ] {
            let text = redirect(hop(Method::POST, url, Some("hush")), status, location);
            let text = text.err().expect("refused");
            assert!(text.contains(reason) && !text.contains("hush"), "{text}");
        }
    }

    #[test]
    fn method_and_body_follow_the_status() {
        for (status, method, next, keeps_body) in [
            (301, Method::POST, Method::GET, false),
            (302, Method::POST, Method::GET, false),
            (302, Method::PUT, Method::PUT, true),
            (303, Method::PUT, Method::GET, false),
            (303, Method::HEAD, Method::HEAD, true),
            (307, Method::POST, Method::POST, true),
            (308, Method::PATCH, Method::PATCH, true),
        ] {
            let hop = hop(method, "http://a/", Some("body"));
            let followed = redirect(hop, status, "/next").expect("followed");
            assert_eq!(followed.method, next, "{status}");
            assert_eq!(followed.body.is_some(), keeps_body, "{status}");
            let has_type = followed.headers.contains_key(CONTENT_TYPE);
            assert_eq!(has_type, keeps_body, "{status}");
        }
    }
}
